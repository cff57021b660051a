"""GMM systems: training, adaptation to speakers, Kaldi's systems in and out."""
