# Networks, trained on the alignments of GMM systems, then on lattices made on the fly.
# Products: <results>/nnet/<system>/{weights.safetensors,network.yaml,meta.json,...}


rule train_network:
    input:
        frames=lambda wildcards: system_of(wildcards).training_frames,
        alignments=lambda wildcards: system_of(wildcards).labels(
            training_set_of(wildcards)
        ),
        dev_frames=lambda wildcards: system_of(wildcards).frames.of("dev"),
        dev_alignments=lambda wildcards: system_of(wildcards).labels("dev"),
        source=lambda wildcards: system_of(wildcards).transition_source,
        aligner=lambda wildcards: system_of(wildcards).other_aligner,
        labels=lambda wildcards: system_of(wildcards).given_labels(
            training_set_of(wildcards)
        ),
        dev_labels=lambda wildcards: system_of(wildcards).given_labels("dev"),
        graphs=lambda wildcards: system_of(wildcards).transcripts(
            training_set_of(wildcards)
        ),
        dev_graphs=lambda wildcards: system_of(wildcards).transcripts("dev"),
        targets=lambda wildcards: system_of(wildcards).target_frames(
            training_set_of(wildcards)
        ),
        dev_targets=lambda wildcards: system_of(wildcards).target_frames("dev"),
        parent=lambda wildcards: system_of(wildcards).parent_weights,
        simulation=lambda wildcards: system_of(wildcards).simulation_files,
        network=ancient(lambda wildcards: system_of(wildcards).description_file),
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
        network="|".join(recipe.networks_of("ce", "ctc", "attention")) or "none",
    conda:
        TORCH
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(2880),
        gpu=TRAINING_GPUS,  # of all ranks
        tasks=1,  # ranks of the training
    params:
        options=lambda wildcards: system_of(wildcards).training_options,
        free_options=free_options_of,
        network_config=lambda wildcards: system_of(wildcards).description_values,
        checkpoints=lambda wildcards: system_of(wildcards).checkpoints,
        max_skipped_fraction=skippable,
        stage=stage("latflow.training.train.train_network"),
    message:
        "Train the network {wildcards.network}"
    script:
        "../scripts/run_stage.py"


rule build_ctc_tree:
    input:
        lang=lambda wildcards: system_of(wildcards).lexicon,
    output:
        model="<results>/chain/{network}/final.mdl",
        tree="<results>/chain/{network}/tree",
        info="<results>/chain/{network}/info.json",
    log:
        "<logs>/build_ctc_tree/{network}.log",
    benchmark:
        "<benchmarks>/build_ctc_tree/{network}.jsonl"
    wildcard_constraints:
        network="|".join(recipe.networks_of("ctc", "attention")) or "none",
    conda:
        TORCH
    threads: 1
    resources:
        mem_mb=per_attempt(2000),
        runtime=per_attempt(30),
    params:
        stage=stage("latflow.align.ctc.build_ctc_tree"),
    message:
        "Write the labels of {wildcards.network}"
    script:
        "../scripts/run_stage.py"


rule compile_ctc:
    input:
        frames=lambda wildcards: system_of(wildcards).frames.of(wildcards.split),
        lang=lambda wildcards: system_of(wildcards).lexicon,
    output:
        graphs="<results>/ctc/{network}/{split}/meta.json",
        ledger="<results>/ctc/{network}/{split}/ledger.jsonl",
    log:
        "<logs>/compile_ctc/{network}.{split}.log",
    benchmark:
        "<benchmarks>/compile_ctc/{network}.{split}.jsonl"
    conda:
        TORCH
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(240),
    params:
        subsampling=lambda wildcards: system_of(wildcards).subsampling,
        max_skipped_fraction=skippable,
        stage=stage("latflow.align.ctc.compile_ctc"),
    message:
        "Compile the CTC graphs of {wildcards.split} for {wildcards.network}"
    script:
        "../scripts/run_stage.py"


use rule compile_ctc as spell_transcripts with:
    output:
        units="<results>/units/{network}/{split}/meta.json",
        ledger="<results>/units/{network}/{split}/ledger.jsonl",
    log:
        "<logs>/spell_transcripts/{network}.{split}.log",
    benchmark:
        "<benchmarks>/spell_transcripts/{network}.{split}.jsonl"
    wildcard_constraints:
        network="|".join(recipe.networks_of("attention")) or "none",
    threads: 1
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(120),
    params:
        kind=lambda wildcards: system_of(wildcards).options.units,
        stage=stage("latflow.align.units.spell_transcripts"),
    message:
        "Spell the transcripts of {wildcards.split} for {wildcards.network}"


rule build_chain_tree:
    input:
        frames=lambda wildcards: recipe.gmm_frames.of(training_set_of(wildcards)),
        lang=lambda wildcards: system_of(wildcards).lexicon,
        alignments=lambda wildcards: system_of(wildcards).gmm_ancestor.alignments(
            training_set_of(wildcards)
        ),
        source=lambda wildcards: system_of(wildcards).gmm_ancestor.model,
        transforms=lambda wildcards: system_of(
            wildcards
        ).gmm_ancestor.aligned_transforms(training_set_of(wildcards)),
    output:
        model="<results>/chain/{network}/final.mdl",
        tree="<results>/chain/{network}/tree",
        phone_lm="<results>/chain/{network}/phone_lm.fst",
        denominator="<results>/chain/{network}/den.fst",
        normalization="<results>/chain/{network}/normalization.fst",
        info="<results>/chain/{network}/info.json",
        ledger="<results>/chain/{network}/ledger.jsonl",
    log:
        "<logs>/build_chain_tree/{network}.log",
    benchmark:
        "<benchmarks>/build_chain_tree/{network}.jsonl"
    wildcard_constraints:
        network="|".join(recipe.lfmmi_networks(flat_start=False)) or "none",
    conda:
        TORCH
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(240),
    params:
        options=lambda wildcards: system_of(wildcards).options.tree.values(),
        stage=stage("latflow.gmm.chain_tree.build_chain_tree"),
    message:
        "Build tree and denominator of {wildcards.network}"
    script:
        "../scripts/run_stage.py"


use rule build_chain_tree as build_full_tree with:
    input:
        frames=lambda wildcards: system_of(wildcards).training_frames,
        lang=lambda wildcards: system_of(wildcards).lexicon,
    log:
        "<logs>/build_full_tree/{network}.log",
    benchmark:
        "<benchmarks>/build_full_tree/{network}.jsonl"
    wildcard_constraints:
        network="|".join(recipe.lfmmi_networks(flat_start=True)) or "none",
    threads: 1
    params:
        seed=recipe.options.seed,
        stage=stage("latflow.align.full_tree.build_full_tree"),
    message:
        "Build tree and denominator of {wildcards.network} from transcripts"


rule align_lattices:
    input:
        frames="<results>/streams/gmm/frames/{split}/meta.json",
        lang=lambda wildcards: system_of(wildcards).lexicon,
        model=lambda wildcards: system_of(wildcards).aligner.model,
        alignments=lambda wildcards: system_of(wildcards).aligner.alignments(
            wildcards.split
        ),
        transforms=lambda wildcards: system_of(wildcards).aligner.aligned_transforms(
            wildcards.split
        ),
    output:
        lattices="<results>/chain/{network}/lattices/{split}/lattices.ark",
        ledger="<results>/chain/{network}/lattices/{split}/ledger.jsonl",
        summary="<results>/chain/{network}/lattices/{split}/decode.json",
    log:
        "<logs>/align_lattices/{network}.{split}.log",
    benchmark:
        "<benchmarks>/align_lattices/{network}.{split}.jsonl"
    wildcard_constraints:
        network="|".join(recipe.lfmmi_networks(flat_start=False)) or "none",
    conda:
        "../../envs/gmm.yaml"
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(480),
    params:
        options=lambda wildcards: system_of(
            wildcards
        ).options.supervision_lattices.values(),
        graph=recipe.options.graph.values(),
        max_skipped_fraction=skippable_in_training,
        stage=stage("latflow.decode.pronunciations.align_lattices"),
    message:
        "Make lattices of the pronunciations in {wildcards.split} for {wildcards.network}"
    script:
        "../scripts/run_stage.py"


rule supervise_flat_start:
    input:
        frames=lambda wildcards: system_of(wildcards).frames.of(wildcards.split),
        lang=lambda wildcards: system_of(wildcards).lexicon,
        chain="<results>/chain/{network}/den.fst",
    output:
        supervisions="<results>/chain/{network}/supervisions/{split}/meta.json",
        ledger="<results>/chain/{network}/supervisions/{split}/ledger.jsonl",
    log:
        "<logs>/supervise_flat_start/{network}.{split}.log",
    benchmark:
        "<benchmarks>/supervise_flat_start/{network}.{split}.jsonl"
    wildcard_constraints:
        network="|".join(recipe.lfmmi_networks(flat_start=True)) or "none",
    conda:
        TORCH
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(240),
    params:
        subsampling=lambda wildcards: system_of(
            wildcards
        ).options.tree.frame_subsampling,
        max_skipped_fraction=skippable_in_training,
        stage=stage("latflow.align.flat_start.supervise_flat_start"),
    message:
        "Make the supervision of {wildcards.network} for {wildcards.split} from transcripts"
    script:
        "../scripts/run_stage.py"


use rule supervise_flat_start as make_supervisions with:
    input:
        unpack(
            lambda wildcards: system_of(wildcards).supervision_inputs(wildcards.split)
        ),
        model=lambda wildcards: system_of(wildcards).aligner.model,
        chain="<results>/chain/{network}/den.fst",
    log:
        "<logs>/make_supervisions/{network}.{split}.log",
    benchmark:
        "<benchmarks>/make_supervisions/{network}.{split}.jsonl"
    wildcard_constraints:
        network="|".join(recipe.lfmmi_networks(flat_start=False)) or "none",
    params:
        options=lambda wildcards: system_of(wildcards).options.supervision.values(),
        stage=stage("latflow.align.supervision_store.make_supervisions"),
    message:
        "Make the supervision of {wildcards.network} for {wildcards.split}"


use rule train_network as train_lfmmi with:
    input:
        frames=lambda wildcards: system_of(wildcards).training_frames,
        supervisions=lambda wildcards: system_of(wildcards).supervisions(
            training_set_of(wildcards)
        ),
        dev_frames=lambda wildcards: system_of(wildcards).frames.of("dev"),
        dev_supervisions=lambda wildcards: system_of(wildcards).supervisions("dev"),
        chain="<results>/chain/{network}/den.fst",
        graphs=lambda wildcards: system_of(wildcards).transcripts(
            training_set_of(wildcards)
        ),
        dev_graphs=lambda wildcards: system_of(wildcards).transcripts("dev"),
        parent=lambda wildcards: system_of(wildcards).parent_weights,
        simulation=lambda wildcards: system_of(wildcards).simulation_files,
        network=ancient(lambda wildcards: system_of(wildcards).description_file),
    log:
        "<logs>/train_lfmmi/{network}.log",
    benchmark:
        "<benchmarks>/train_lfmmi/{network}.jsonl"
    wildcard_constraints:
        network="|".join(recipe.networks_of("lfmmi")) or "none",
    params:
        stage=stage("latflow.training.lfmmi.train_lfmmi"),
    message:
        "Train the network {wildcards.network} by lattice-free MMI"


rule align_network:
    input:
        frames=lambda wildcards: system_of(wildcards).frames.of(wildcards.split),
        lang=lambda wildcards: system_of(wildcards).lexicon,
        weights="<results>/nnet/{network}/weights.safetensors",
        model="<results>/nnet/{network}/final.mdl",
    output:
        alignments="<results>/align/{network}/{split}/ali.ark",
        log_likes="<results>/align/{network}/{split}/log_likes/meta.json",
        ledger="<results>/align/{network}/{split}/ledger.jsonl",
        statistics="<results>/align/{network}/{split}/statistics.json",
    log:
        "<logs>/align_network/{network}.{split}.log",
    benchmark:
        "<benchmarks>/align_network/{network}.{split}.jsonl"
    wildcard_constraints:
        network=in_one_job("alignment", recipe.networks),
    conda:
        TORCH
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(240),
        gpu=DECODING_GPUS,
    params:
        options=lambda wildcards: {
            **system_of(wildcards).align_options,
            "scores": system_of(wildcards).scores_options,
        },
        free_options=device_of_alignment,
        graph=lambda wildcards: system_of(wildcards).graph_options.values(),
        max_skipped_fraction=skippable,
        stage=stage("latflow.decode.align.align_network"),
    message:
        "Align {wildcards.split} with {wildcards.network}"
    script:
        "../scripts/run_stage.py"


rule make_denominator:
    input:
        cuts="<results>/corpus/train/cuts.jsonl.gz",
        lang=lambda wildcards: system_of(wildcards).lexicon,
        words=lambda wildcards: system_of(wildcards).words,
        model=lambda wildcards: system_of(wildcards).tree_model,
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
        mem_mb=per_attempt(8000),
        runtime=per_attempt(480),
    params:
        options=lambda wildcards: system_of(wildcards).denominator_options.values(),
        stage=stage("latflow.graphs.denominator.make_denominator"),
    message:
        "Compose the denominator graph of {wildcards.system}"
    script:
        "../scripts/run_stage.py"


rule compile_transcripts:
    input:
        frames="<results>/streams/gmm/frames/{split}/meta.json",
        lang=lambda wildcards: system_of(wildcards).lexicon,
        model=lambda wildcards: system_of(wildcards).tree_model,
    output:
        graphs="<results>/denominator/{system}/transcripts/{split}/meta.json",
        ledger="<results>/denominator/{system}/transcripts/{split}/ledger.jsonl",
    log:
        "<logs>/compile_transcripts/{system}.{split}.log",
    benchmark:
        "<benchmarks>/compile_transcripts/{system}.{split}.jsonl"
    conda:
        TORCH
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(240),
    params:
        stage=stage("latflow.align.graphs.compile_transcripts"),
    message:
        "Compile the training graphs of {wildcards.split} for {wildcards.system}"
    script:
        "../scripts/run_stage.py"


rule train_sequence:
    input:
        frames=lambda wildcards: system_of(wildcards).training_frames,
        dev_frames=lambda wildcards: system_of(wildcards).frames.of("dev"),
        parent=lambda wildcards: system_of(wildcards).parent_weights,
        lang=lambda wildcards: system_of(wildcards).words,
        denominator=lambda wildcards: system_of(wildcards).denominator,
        graph=lambda wildcards: system_of(wildcards).graph,
        # Scales only rank epochs on dev: another decoding of the seed changes nothing.
        scales=ancient(lambda wildcards: system_of(wildcards).parent_scales),
        alignments=lambda wildcards: system_of(wildcards).aligner.alignments(
            training_set_of(wildcards)
        ),
        training_graphs=lambda wildcards: system_of(wildcards).training_graphs,
        teacher=lambda wildcards: system_of(wildcards).teacher_weights,
        simulation=lambda wildcards: system_of(wildcards).simulation_files,
        criterion=lambda wildcards: system_of(wildcards).criterion_files,
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
        mem_mb=per_attempt(8000),
        runtime=per_attempt(2880),
        gpu=TRAINING_GPUS,  # of all ranks
        tasks=1,  # ranks of the training
    params:
        options=lambda wildcards: system_of(wildcards).training_options,
        free_options=free_options_of,
        checkpoints=lambda wildcards: system_of(wildcards).checkpoints,
        stage=stage("latflow.training.sequence.train_sequence"),
    message:
        "Train the network {wildcards.network} on lattices"
    script:
        "../scripts/run_stage.py"
