"""Where parameters start.

| parameters | start |
|---|---|
| linear maps, convolutions, attention | Glorot uniform; offsets 0 |
| LSTM, GRU: from the input | Glorot uniform, each gate by itself; offsets 0 |
| LSTM, GRU: from the step before | orthogonal, each gate by itself; offsets 0 |
| LSTM: offset of the forget gate | 1, so that it remembers at first |
| semi-orthogonal factors (tdnnf) | normal, deviation 1 / sqrt(inputs), as Kaldi |
| norms | scale 1, offset 0 |

Sources: Glorot & Bengio 2010; Saxe, McClelland & Ganguli 2014; Jozefowicz, Zaremba &
Sutskever 2015 (forget gate).
"""

from __future__ import annotations

import torch
from torch import nn

from latflow.nnet.layers.semi_orthogonal import SemiOrthogonal


@torch.no_grad()
def initialise(module: nn.Module) -> None:
    """Set the parameters of a module and of all within, from torch's CPU generator."""
    for part in module.modules():
        if isinstance(part, SemiOrthogonal):
            nn.init.normal_(part.weight, std=part.in_features**-0.5)
        elif isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.LSTM | nn.GRU):
            _initialise_recurrent(part)


def _initialise_recurrent(rnn: nn.LSTM | nn.GRU) -> None:
    """Set the parameters of a stack of recurrent layers."""
    is_lstm = isinstance(rnn, nn.LSTM)
    num_gates = 4 if is_lstm else 3
    for name, parameter in rnn.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
            if is_lstm and name.startswith("bias_ih"):
                parameter.chunk(num_gates)[1].fill_(1.0)  # gates: input, forget, ...
        elif name.startswith("weight_hr"):  # the projection
            nn.init.xavier_uniform_(parameter)
        else:
            start = nn.init.orthogonal_
            if name.startswith("weight_ih"):
                start = nn.init.xavier_uniform_
            for gate in parameter.chunk(num_gates):
                start(gate)
