"""Training of networks: data, the trainer, distributed training, what follows it."""
