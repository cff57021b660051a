from latflow.serving.recognizer import load as load
from latflow.serving.recognizer import score as score

__version__: str
