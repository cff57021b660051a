# Networks, trained on the alignments of GMM systems, then on lattices made on the fly.
# Products: <results>/nnet/<system>/{weights.safetensors,network.yaml,meta.json,...}


rule train_network:
    input:
        frames=frames_of("train"),
        alignments=labels_of("train"),
        dev_frames=frames_of("dev"),
        dev_alignments=labels_of("dev"),
        source=source_of_network,
        aligner=aligner_of_network,
        labels=given_labels_of("train"),
        dev_labels=given_labels_of("dev"),
        graphs=transcripts_of("train"),
        dev_graphs=transcripts_of("dev"),
        targets=features_learnt("train"),
        dev_targets=features_learnt("dev"),
        parent=parent_of,
        simulation=simulation_files_of,
        network=ancient(network_of),
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
        mem_mb=growing(8000),
        runtime=growing(2880),
        gpu=TRAINING_GPUS,  # of all ranks
        tasks=1,  # ranks of the training
    params:
        options=lambda wildcards: recipe.network_options(wildcards.network),
        free_options=free_network_options,
        network_config=lambda wildcards: recipe.network_config(wildcards.network),
        checkpoints=lambda wildcards: checkpoints_of(wildcards.network),
        max_skipped_fraction=skippable,
        stage=stage("latflow.training.train.train_network"),
    message:
        "Train the network {wildcards.network}"
    script:
        "../scripts/run_stage.py"


rule build_ctc_tree:
    input:
        lang=lexicon_for,
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
        mem_mb=growing(2000),
        runtime=growing(30),
    params:
        stage=stage("latflow.align.ctc.build_ctc_tree"),
    message:
        "Write the labels of {wildcards.network}"
    script:
        "../scripts/run_stage.py"


rule compile_ctc:
    input:
        frames=frames_of("{split}"),
        lang=lexicon_for,
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
        mem_mb=growing(8000),
        runtime=growing(240),
    params:
        subsampling=lambda wildcards: recipe.subsampling_of(wildcards.network),
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
        mem_mb=growing(4000),
        runtime=growing(120),
    params:
        kind=lambda wildcards: recipe.attention_system(wildcards.network).units,
        stage=stage("latflow.align.units.spell_transcripts"),
    message:
        "Spell the transcripts of {wildcards.split} for {wildcards.network}"


rule build_chain_tree:
    input:
        frames=frames_behind,
        lang=lexicon_for,
        alignments=lambda wildcards: alignments_behind(wildcards, "ali.ark"),
        source=gmm_behind,
        transforms=lambda wildcards: alignments_behind(wildcards, "trans.ark"),
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
        network="|".join(recipe.lattice_free_networks(flat_start=False)) or "none",
    conda:
        TORCH
    threads: 16
    resources:
        mem_mb=growing(8000),
        runtime=growing(240),
    params:
        options=lambda wildcards: recipe.chain_system(wildcards.network).tree.values(),
        stage=stage("latflow.gmm.chain_tree.build_chain_tree"),
    message:
        "Build tree and denominator of {wildcards.network}"
    script:
        "../scripts/run_stage.py"


use rule build_chain_tree as build_full_tree with:
    input:
        frames=frames_of("train"),
        lang=lexicon_for,
    log:
        "<logs>/build_full_tree/{network}.log",
    benchmark:
        "<benchmarks>/build_full_tree/{network}.jsonl"
    wildcard_constraints:
        network="|".join(recipe.lattice_free_networks(flat_start=True)) or "none",
    threads: 1
    params:
        seed=recipe.options.seed,
        stage=stage("latflow.align.full_tree.build_full_tree"),
    message:
        "Build tree and denominator of {wildcards.network} from transcripts"


rule align_lattices:
    input:
        frames="<results>/frames/{split}/meta.json",
        lang=lexicon_for,
        model=model_of_alignments,
        alignments=alignments_of("{split}"),
        transforms=transforms_of_aligner,
    output:
        lattices="<results>/chain/{network}/lattices/{split}/lattices.ark",
        ledger="<results>/chain/{network}/lattices/{split}/ledger.jsonl",
        summary="<results>/chain/{network}/lattices/{split}/decode.json",
    log:
        "<logs>/align_lattices/{network}.{split}.log",
    benchmark:
        "<benchmarks>/align_lattices/{network}.{split}.jsonl"
    wildcard_constraints:
        network="|".join(recipe.lattice_free_networks(flat_start=False)) or "none",
    conda:
        "../../envs/gmm.yaml"
    threads: 16
    resources:
        mem_mb=growing(8000),
        runtime=growing(480),
    params:
        options=lambda wildcards: recipe.chain_system(
            wildcards.network
        ).supervision_lattices.values(),
        graph=recipe.options.graph.values(),
        max_skipped_fraction=skippable_in_training,
        stage=stage("latflow.decode.pronunciations.align_lattices"),
    message:
        "Make lattices of the pronunciations in {wildcards.split} for {wildcards.network}"
    script:
        "../scripts/run_stage.py"


rule supervise_flat_start:
    input:
        frames=frames_of("{split}"),
        lang=lexicon_for,
        chain="<results>/chain/{network}/den.fst",
    output:
        supervisions="<results>/chain/{network}/supervisions/{split}/meta.json",
        ledger="<results>/chain/{network}/supervisions/{split}/ledger.jsonl",
    log:
        "<logs>/supervise_flat_start/{network}.{split}.log",
    benchmark:
        "<benchmarks>/supervise_flat_start/{network}.{split}.jsonl"
    wildcard_constraints:
        network="|".join(recipe.lattice_free_networks(flat_start=True)) or "none",
    conda:
        TORCH
    threads: 16
    resources:
        mem_mb=growing(8000),
        runtime=growing(240),
    params:
        subsampling=lambda wildcards: recipe.chain_system(
            wildcards.network
        ).tree.frame_subsampling,
        max_skipped_fraction=skippable_in_training,
        stage=stage("latflow.align.flat_start.supervise_flat_start"),
    message:
        "Make the supervision of {wildcards.network} for {wildcards.split} from transcripts"
    script:
        "../scripts/run_stage.py"


use rule supervise_flat_start as make_supervisions with:
    input:
        unpack(aligned_for_supervision),
        model=model_of_alignments,
        chain="<results>/chain/{network}/den.fst",
    log:
        "<logs>/make_supervisions/{network}.{split}.log",
    benchmark:
        "<benchmarks>/make_supervisions/{network}.{split}.jsonl"
    wildcard_constraints:
        network="|".join(recipe.lattice_free_networks(flat_start=False)) or "none",
    params:
        options=lambda wildcards: recipe.chain_system(
            wildcards.network
        ).supervision.values(),
        stage=stage("latflow.align.supervision_store.make_supervisions"),
    message:
        "Make the supervision of {wildcards.network} for {wildcards.split}"


use rule train_network as train_lfmmi with:
    input:
        frames=frames_of("train"),
        supervisions=supervisions_of("train"),
        dev_frames=frames_of("dev"),
        dev_supervisions=supervisions_of("dev"),
        chain="<results>/chain/{network}/den.fst",
        parent=parent_of,
        simulation=simulation_files_of,
        network=ancient(network_of),
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
        frames=frames_of("{split}"),
        lang=lexicon_for,
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
        mem_mb=growing(8000),
        runtime=growing(240),
        gpu=DECODING_GPUS,
    params:
        options=lambda wildcards: recipe.align_network_options(wildcards.network),
        graph=lambda wildcards: recipe.graph_options(wildcards.network).values(),
        max_skipped_fraction=skippable,
        stage=stage("latflow.decode.align.align_network"),
    message:
        "Align {wildcards.split} with {wildcards.network}"
    script:
        "../scripts/run_stage.py"


rule make_denominator:
    input:
        cuts="<results>/corpus/train/cuts.jsonl.gz",
        lang=lexicon_for,
        words=words_for,
        model=tree_model_of,
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
        mem_mb=growing(8000),
        runtime=growing(480),
    params:
        options=lambda wildcards: recipe.denominator_options(wildcards.system).values(),
        stage=stage("latflow.graphs.denominator.make_denominator"),
    message:
        "Compose the denominator graph of {wildcards.system}"
    script:
        "../scripts/run_stage.py"


rule compile_transcripts:
    input:
        frames="<results>/frames/{split}/meta.json",
        lang=lexicon_for,
        model=tree_model_of,
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
        mem_mb=growing(8000),
        runtime=growing(240),
    params:
        stage=stage("latflow.align.graphs.compile_transcripts"),
    message:
        "Compile the training graphs of {wildcards.split} for {wildcards.system}"
    script:
        "../scripts/run_stage.py"


rule train_sequence:
    input:
        frames=frames_of("train"),
        dev_frames=frames_of("dev"),
        parent=parent_of,
        lang=words_for,
        denominator=denominator_of,
        graph=graph_of,
        # Scales only rank epochs on dev: another decoding of the seed changes nothing.
        scales=ancient(scales_of_parent),
        alignments=alignments_of("train"),
        training_graphs=training_graphs_of,
        teacher=teacher_of,
        simulation=simulation_files_of,
        criterion=criterion_files_of,
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
        mem_mb=growing(8000),
        runtime=growing(2880),
        gpu=TRAINING_GPUS,  # of all ranks
        tasks=1,  # ranks of the training
    params:
        options=lambda wildcards: recipe.sequence_options(wildcards.network),
        free_options=free_network_options,
        checkpoints=lambda wildcards: checkpoints_of(wildcards.network),
        stage=stage("latflow.sequence.train.train_sequence"),
    message:
        "Train the network {wildcards.network} on lattices"
    script:
        "../scripts/run_stage.py"
