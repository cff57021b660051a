# Networks, trained on the alignments of GMM systems.
# Products: <results>/nnet/<system>/{weights.safetensors,network.yaml,meta.json,...}


rule train_network:
    input:
        frames=frames_of("train"),
        alignments=alignments_of("train"),
        dev_frames=frames_of("dev"),
        dev_alignments=alignments_of("dev"),
        source=model_of_alignments,
        network=network_of,
    output:
        weights="<results>/nnet/{network}/weights.safetensors",
        description="<results>/nnet/{network}/network.yaml",
        priors="<results>/nnet/{network}/priors.npy",
        meta="<results>/nnet/{network}/meta.json",
        model="<results>/nnet/{network}/final.mdl",
        tree="<results>/nnet/{network}/tree",
        info="<results>/nnet/{network}/info.json",
        history="<results>/nnet/{network}/log.jsonl",
        ledger="<results>/nnet/{network}/ledger.jsonl",
    log:
        "<logs>/train_network/{network}.log",
    benchmark:
        "<benchmarks>/train_network/{network}.jsonl"
    conda:
        "../../envs/torch.yaml"
    threads: 16
    resources:
        mem_mb=lambda wildcards, attempt: 16000 * attempt,
        runtime=2880,
        tasks=1,  # ranks of the training
    params:
        options=lambda wildcards: recipe.network_options(wildcards.network),
        checkpoints="<results>/checkpoints/{network}",
        max_skipped_fraction=recipe.max_skipped_fraction,
        code=source_digest("latflow.training.train"),
    message:
        "Train the network {wildcards.network}"
    script:
        "../scripts/train_network.py"
