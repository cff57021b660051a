# Systems that leave the workflow.
# Products: <results>/package/<system>/package.json, <results>/served/<system>/<split>/wer.json,
# <results>/transcribe/<name>/recordings.tsv, <results>/capacity/<system>.tsv


rule package_model:
    input:
        unpack(files_of_package),
    output:
        info="<results>/package/{system}/package.json",
    log:
        "<logs>/package_model/{system}.log",
    benchmark:
        "<benchmarks>/package_model/{system}.jsonl"
    conda:
        "../../envs/serve.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(60),
    params:
        options=lambda wildcards: PackagePlan(recipe, wildcards.system).package_options,
        stage=stage("latflow.serving.packaging.write_package"),
    message:
        "Package {wildcards.system}"
    script:
        "../scripts/run_stage.py"


rule score_served:
    input:
        package="<results>/package/{system}/package.json",
        cuts="<results>/corpus/{split}/cuts.jsonl.gz",
        features=scored_features_of,
    output:
        text="<results>/served/{system}/{split}/hyp.txt",
        ctm="<results>/served/{system}/{split}/hyp.ctm",
        wer="<results>/served/{system}/{split}/wer.json",
        utterances="<results>/served/{system}/{split}/per_utterance.tsv",
        speakers="<results>/served/{system}/{split}/per_speaker.tsv",
        confusions="<results>/served/{system}/{split}/confusions.tsv",
    log:
        "<logs>/score_served/{system}.{split}.log",
    benchmark:
        "<benchmarks>/score_served/{system}.{split}.jsonl"
    wildcard_constraints:
        split="|".join(recipe.served_sets) or "none",
    conda:
        "../../envs/serve.yaml"
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(480),
    params:
        options=recipe.options.score.values(),
        seed=recipe.options.seed,
        stage=stage("latflow.serving.served_scores.score_served"),
    message:
        "Score the package of {wildcards.system} on {wildcards.split}"
    script:
        "../scripts/run_stage.py"


rule transcribe:
    input:
        package=lambda wildcards: (
            f"{RESULTS}/package/{transcription_of(wildcards).system}/package.json"
        ),
        recordings=recordings_of,
    output:
        summary="<results>/transcribe/{transcription}/recordings.tsv",
        ledger="<results>/transcribe/{transcription}/ledger.jsonl",
    log:
        "<logs>/transcribe/{transcription}.log",
    benchmark:
        "<benchmarks>/transcribe/{transcription}.jsonl"
    conda:
        "../../envs/serve.yaml"
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(480),
    params:
        options=lambda wildcards: transcription_of(wildcards).values(),
        max_skipped_fraction=skippable,
        stage=stage("latflow.serving.transcribe.transcribe_recordings"),
    message:
        "Transcribe {wildcards.transcription}"
    script:
        "../scripts/run_stage.py"


rule measure_capacity:
    input:
        package="<results>/package/{system}/package.json",
        cuts=f"<results>/corpus/{recipe.capacity_set}/cuts.jsonl.gz",
    output:
        table="<results>/capacity/{system}.tsv",
    log:
        "<logs>/measure_capacity/{system}.log",
    benchmark:
        "<benchmarks>/measure_capacity/{system}.jsonl"
    conda:
        "../../envs/serve.yaml"
    threads: 2  # of which the clients need one
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(60),
    params:
        options=recipe.options.capacity.values(),
        stage=stage("latflow.serving.capacity.measure_capacity"),
    message:
        "Load a server of {wildcards.system}"
    script:
        "../scripts/run_stage.py"
