# GMM-HMM training and alignment.
# Products: <results>/gmm/<system>/{final.mdl,tree,...}, <results>/align/<system>/<split>/ali.ark


rule train_mono:
    input:
        frames="<results>/streams/gmm/frames/train/meta.json",
        lang=lambda wildcards: system_of(wildcards).lexicon,
    output:
        model="<results>/gmm/{system}/final.mdl",
        tree="<results>/gmm/{system}/tree",
        iterations="<results>/gmm/{system}/iterations.tsv",
        ledger="<results>/gmm/{system}/ledger.jsonl",
        info="<results>/gmm/{system}/info.json",
        transform="<results>/gmm/{system}/transform.json",
    log:
        "<logs>/train_mono/{system}.log",
    benchmark:
        "<benchmarks>/train_mono/{system}.jsonl"
    wildcard_constraints:
        system="|".join(recipe.gmms_of("mono")) or "none",
    conda:
        "../../envs/gmm.yaml"
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(480),
        gpu=GMM_GPUS,
    params:
        options=lambda wildcards: system_of(wildcards).training_options,
        shared=recipe.shared_options,
        max_skipped_fraction=skippable,
        stage=stage("latflow.gmm.train.train_mono"),
    message:
        "Train the monophone system {wildcards.system}"
    script:
        "../scripts/run_stage.py"


use rule train_mono as train_deltas with:
    input:
        frames="<results>/streams/gmm/frames/train/meta.json",
        lang=lambda wildcards: system_of(wildcards).lexicon,
        alignments=lambda wildcards: system_of(wildcards).aligner.alignments("train"),
        source=lambda wildcards: system_of(wildcards).aligner.model,
    log:
        "<logs>/train_deltas/{system}.log",
    benchmark:
        "<benchmarks>/train_deltas/{system}.jsonl"
    wildcard_constraints:
        system="|".join(recipe.gmms_of("deltas")) or "none",
    params:
        stage=stage("latflow.gmm.train.train_deltas"),
    message:
        "Train the triphone system {wildcards.system}"


use rule train_deltas as train_lda_mllt with:
    output:
        model="<results>/gmm/{system}/final.mdl",
        tree="<results>/gmm/{system}/tree",
        iterations="<results>/gmm/{system}/iterations.tsv",
        ledger="<results>/gmm/{system}/ledger.jsonl",
        info="<results>/gmm/{system}/info.json",
        transform="<results>/gmm/{system}/transform.json",
        matrix="<results>/gmm/{system}/final.mat",
        full="<results>/gmm/{system}/full.mat",
    log:
        "<logs>/train_lda_mllt/{system}.log",
    benchmark:
        "<benchmarks>/train_lda_mllt/{system}.jsonl"
    wildcard_constraints:
        system="|".join(recipe.gmms_of("lda_mllt")) or "none",
    params:
        stage=stage("latflow.gmm.lda_mllt.train_lda_mllt"),
    message:
        "Train the triphone system {wildcards.system} on features from LDA and MLLT"


use rule train_deltas as train_sat with:
    input:
        frames="<results>/streams/gmm/frames/train/meta.json",
        lang=lambda wildcards: system_of(wildcards).lexicon,
        alignments=lambda wildcards: system_of(wildcards).aligner.alignments("train"),
        source=lambda wildcards: system_of(wildcards).aligner.model,
        transforms=lambda wildcards: system_of(wildcards).aligner.aligned_transforms(
            "train"
        ),
    output:
        model="<results>/gmm/{system}/final.mdl",
        alignment_model="<results>/gmm/{system}/final.alimdl",
        tree="<results>/gmm/{system}/tree",
        iterations="<results>/gmm/{system}/iterations.tsv",
        ledger="<results>/gmm/{system}/ledger.jsonl",
        info="<results>/gmm/{system}/info.json",
        transform="<results>/gmm/{system}/transform.json",
        transforms="<results>/gmm/{system}/trans.ark",
    log:
        "<logs>/train_sat/{system}.log",
    benchmark:
        "<benchmarks>/train_sat/{system}.jsonl"
    wildcard_constraints:
        system="|".join(recipe.gmms_of("sat")) or "none",
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(960),
        gpu=GMM_GPUS,
    params:
        stage=stage("latflow.gmm.sat.train_sat"),
    message:
        "Train the speaker-adapted system {wildcards.system}"


rule align_frames:
    input:
        frames="<results>/streams/gmm/frames/{split}/meta.json",
        lang=lambda wildcards: system_of(wildcards).lexicon,
        model="<results>/gmm/{system}/final.mdl",
    output:
        alignments="<results>/align/{system}/{split}/ali.ark",
        log_likes="<results>/align/{system}/{split}/log_likes/meta.json",
        ledger="<results>/align/{system}/{split}/ledger.jsonl",
        statistics="<results>/align/{system}/{split}/statistics.json",
    log:
        "<logs>/align_frames/{system}.{split}.log",
    benchmark:
        "<benchmarks>/align_frames/{system}.{split}.jsonl"
    wildcard_constraints:
        system=in_one_job("alignment", recipe.plain_systems),
    conda:
        "../../envs/gmm.yaml"
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(240),
    params:
        options=lambda wildcards: system_of(wildcards).align_options,
        graph=recipe.options.graph.values(),
        max_skipped_fraction=skippable,
        stage=stage("latflow.gmm.alignment.align_gmm"),
    message:
        "Align {wildcards.split} with {wildcards.system}"
    script:
        "../scripts/run_stage.py"


use rule align_frames as align_adapted with:
    input:
        frames="<results>/streams/gmm/frames/{split}/meta.json",
        lang=lambda wildcards: system_of(wildcards).lexicon,
        model="<results>/gmm/{system}/final.mdl",
        alignment_model="<results>/gmm/{system}/final.alimdl",
    output:
        alignments="<results>/align/{system}/{split}/ali.ark",
        log_likes="<results>/align/{system}/{split}/log_likes/meta.json",
        transforms="<results>/align/{system}/{split}/trans.ark",
        ledger="<results>/align/{system}/{split}/ledger.jsonl",
        statistics="<results>/align/{system}/{split}/statistics.json",
    log:
        "<logs>/align_adapted/{system}.{split}.log",
    benchmark:
        "<benchmarks>/align_adapted/{system}.{split}.jsonl"
    wildcard_constraints:
        system=in_one_job("alignment", recipe.adapted_systems),
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(480),
    params:
        options=recipe.options.gmm.align.values(),
    message:
        "Align {wildcards.split} with {wildcards.system}, adapted to each speaker"
