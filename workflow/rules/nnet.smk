# Networks, trained on the alignments of GMM systems, then on lattices made on the fly.
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
    wildcard_constraints:
        network="|".join(recipe.networks_of("ce")) or "none",
    conda:
        TORCH
    threads: 16
    resources:
        mem_mb=growing(16000),
        runtime=growing(2880),
        gpu=TRAINING_GPUS,  # of all ranks
        tasks=1,  # ranks of the training
    params:
        options=lambda wildcards: recipe.network_options(wildcards.network),
        checkpoints=lambda wildcards: f"{RESULTS}/checkpoints/{wildcards.network}",
        max_skipped_fraction=recipe.max_skipped_fraction,
        code=source_digest("latflow.training.train"),
    message:
        "Train the network {wildcards.network}"
    script:
        "../scripts/train_network.py"


rule make_denominator:
    input:
        cuts="<results>/corpus/train/cuts.jsonl.gz",
        lexicon_fst=lexicon_for,
        words=words_for,
        model="<results>/gmm/{system}/final.mdl",
    output:
        graph="<results>/denominator/{system}/HCLG.fst",
        facts="<results>/denominator/{system}/HCLG.json",
    log:
        "<logs>/make_denominator/{system}.log",
    benchmark:
        "<benchmarks>/make_denominator/{system}.jsonl"
    conda:
        TORCH
    threads: 1
    resources:
        mem_mb=growing(16000),
        runtime=growing(480),
    params:
        options=recipe.denominator_options(),
        code=source_digest("latflow.sequence.denominator"),
    message:
        "Compose the denominator graph of {wildcards.system}"
    script:
        "../scripts/make_denominator.py"


rule compile_transcripts:
    input:
        frames="<results>/frames/train/meta.json",
        lexicon_fst=lexicon_for,
        model="<results>/gmm/{system}/final.mdl",
    output:
        graphs="<results>/denominator/{system}/transcripts.graphs",
        ledger="<results>/denominator/{system}/transcripts.graphs.ledger.jsonl",
    log:
        "<logs>/compile_transcripts/{system}.log",
    benchmark:
        "<benchmarks>/compile_transcripts/{system}.jsonl"
    conda:
        TORCH
    threads: 16
    resources:
        mem_mb=growing(8000),
        runtime=growing(240),
    params:
        options=recipe.denominator_options(),
        code=source_digest("latflow.sequence.transcripts"),
    message:
        "Compile the training graphs of {wildcards.system}"
    script:
        "../scripts/compile_transcripts.py"


rule train_sequence:
    input:
        frames=frames_of("train"),
        dev_frames=frames_of("dev"),
        parent=parent_of,
        words=words_for,
        denominator=denominator_of,
        graph=graph_of,
        # Scales only rank epochs on dev: another decoding of the seed changes nothing.
        scales=ancient(scales_of_parent),
        alignments=alignments_of("train"),
        training_graphs=training_graphs_of,
        teacher=teacher_of,
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
        failures="<results>/nnet/{network}/sequence_ledger.jsonl",
        drift="<results>/nnet/{network}/drift.json",
    log:
        "<logs>/train_sequence/{network}.log",
    benchmark:
        "<benchmarks>/train_sequence/{network}.jsonl"
    wildcard_constraints:
        network="|".join(recipe.networks_of("sequence")) or "none",
    conda:
        TORCH
    threads: 16
    resources:
        mem_mb=growing(16000),
        runtime=growing(2880),
        gpu=TRAINING_GPUS,  # of all ranks
        tasks=1,  # ranks of the training
    params:
        options=lambda wildcards: recipe.sequence_options(wildcards.network),
        checkpoints=lambda wildcards: f"{RESULTS}/checkpoints/{wildcards.network}",
        code=source_digest("latflow.sequence.train"),
    message:
        "Train the network {wildcards.network} on lattices"
    script:
        "../scripts/train_sequence.py"
