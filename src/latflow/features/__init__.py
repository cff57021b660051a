"""Acoustic features: samples to normalised frames, with Kaldi's numbers.

options      settings of the front end, frame counts
filters      window function, mel filters, cosine transform
front_end    the torch module: batches (differentiable) and whole signals
streaming    the same on a signal that arrives in pieces
extractor    the same as Lhotse's feature extractors
cmvn         mean and variance normalisation
transform    deltas and splicing, made when frames are read
frames       FrameStore: all frames of a corpus, flat and memory-mapped
manifests    Lhotse's cuts and storage, streamed
extract      the stages extract_features and normalise_features
"""
