"""Acoustic features: samples to normalized frames, with Kaldi's numbers.

options      settings of the front end, frame counts
front_end    the torch module: batches (differentiable), whole signals, streams
cmvn         mean and variance normalization
normalization  the stage compute_cmvn, which says how frames are normalized when read
transform    deltas and splicing, made when frames are read
frames       all frames of a corpus, flat and memory-mapped; CMVN when they are read
extract      the stage extract_features, and the front end as Lhotse's extractors
storage      export of features to Lhotse's storages
lhotse_extractors  Lhotse's extractors, and users' own, as front ends
frame_times  times of frames, and their size, known without audio
live         features computed from the audio when they are read
perturb      speed and volume of signals, drawn on the fly
source       stored or live features, whichever a folder is of
"""
