# Recordings and transcripts become Lhotse manifests.
# Products: <results>/corpus/<split>/{recordings,supervisions,cuts}.jsonl.gz


rule prepare_corpus:
    input:
        lambda wildcards: recipe.source_files(wildcards.split),
        vocabulary=lambda wildcards: recipe.vocabulary(wildcards.split),
        dictionaries=recipe.language.dictionaries,
    output:
        multiext(
            "<results>/corpus/{split}/",
            "recordings.jsonl.gz",
            "supervisions.jsonl.gz",
            "cuts.jsonl.gz",
            "ledger.jsonl",
        ),
    log:
        "<logs>/prepare_corpus/{split}.log",
    benchmark:
        "<benchmarks>/prepare_corpus/{split}.jsonl"
    wildcard_constraints:
        split="|".join(recipe.sources),
    conda:
        "../../envs/corpus.yaml"
    threads: 16
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(240),
    params:
        source=lambda wildcards: recipe.sources[wildcards.split].values(),
        files=lambda wildcards: recipe.source_digest(wildcards.split),
        split="{split}",
        seed=recipe.options.seed,
        max_skipped_fraction=skippable,
        stage=stage("latflow.lang.vocabulary.prepare_corpus", has_workers=True),
    message:
        "Prepare the {wildcards.split} recordings and transcripts"
    script:
        "../scripts/run_stage.py"


if recipe.holds_out_dev:

    rule hold_out:
        input:
            cuts="<results>/corpus/full/cuts.jsonl.gz",
        output:
            train=multiext(
                "<results>/corpus/train/",
                "recordings.jsonl.gz",
                "supervisions.jsonl.gz",
                "cuts.jsonl.gz",
                "ledger.jsonl",
            ),
            dev=multiext(
                "<results>/corpus/dev/",
                "recordings.jsonl.gz",
                "supervisions.jsonl.gz",
                "cuts.jsonl.gz",
                "ledger.jsonl",
            ),
        log:
            "<logs>/hold_out/train.log",
        benchmark:
            "<benchmarks>/hold_out/train.jsonl"
        conda:
            "../../envs/corpus.yaml"
        threads: 1
        resources:
            mem_mb=per_attempt(4000),
            runtime=per_attempt(60),
        params:
            options=recipe.options.corpus.dev.values(),
            seed=recipe.options.seed,
            stage=stage("latflow.corpus.hold_out.hold_out"),
        message:
            "Hold a dev set out of train"
        script:
            "../scripts/run_stage.py"


rule clean_corpus:
    input:
        cuts="<results>/corpus/train/cuts.jsonl.gz",
        recordings="<results>/corpus/train/recordings.jsonl.gz",
        hypotheses="<results>/suspects/train/biased/hyp.ctm",
        lang=lambda wildcards: recipe.suspect_system.lexicon,
    output:
        multiext(
            "<results>/corpus/{split}/",
            "recordings.jsonl.gz",
            "supervisions.jsonl.gz",
            "cuts.jsonl.gz",
            "ledger.jsonl",
            "cleaned.json",
        ),
    log:
        "<logs>/clean_corpus/{split}.log",
    benchmark:
        "<benchmarks>/clean_corpus/{split}.jsonl"
    wildcard_constraints:
        split="|".join(recipe.options.corpus.cleaned) or "none",
    conda:
        "../../envs/gmm.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(120),
    params:
        options=lambda wildcards: recipe.options.corpus.cleaned[
            wildcards.split
        ].values(),
        stage=stage("latflow.align.cleanup.clean_corpus"),
    message:
        "Take what agrees with its transcript from train: {wildcards.split}"
    script:
        "../scripts/run_stage.py"


rule join_with_pauses:
    input:
        cuts=lambda wildcards: "{}/corpus/{}/cuts.jsonl.gz".format(
            RESULTS, recipe.options.corpus.paused[wildcards.split].of
        ),
    output:
        multiext(
            "<results>/corpus/{split}/",
            "recordings.jsonl.gz",
            "supervisions.jsonl.gz",
            "cuts.jsonl.gz",
            "ledger.jsonl",
        ),
    log:
        "<logs>/join_with_pauses/{split}.log",
    benchmark:
        "<benchmarks>/join_with_pauses/{split}.jsonl"
    wildcard_constraints:
        split="|".join(recipe.options.corpus.paused) or "none",
    conda:
        "../../envs/corpus.yaml"
    threads: 16
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(240),
    params:
        options=lambda wildcards: recipe.options.corpus.paused[wildcards.split].values(),
        seed=recipe.options.seed,
        stage=stage("latflow.corpus.pauses.join_with_pauses"),
    message:
        "Join utterances with pauses: {wildcards.split}"
    script:
        "../scripts/run_stage.py"


use rule join_with_pauses as perturb_corpus with:
    input:
        cuts=lambda wildcards: "{}/corpus/{}/cuts.jsonl.gz".format(
            RESULTS, recipe.options.corpus.perturbed[wildcards.split].of
        ),
    log:
        "<logs>/perturb_corpus/{split}.log",
    benchmark:
        "<benchmarks>/perturb_corpus/{split}.jsonl"
    wildcard_constraints:
        split="|".join(recipe.options.corpus.perturbed) or "none",
    threads: 1
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(120),
    params:
        options=lambda wildcards: recipe.options.corpus.perturbed[
            wildcards.split
        ].values(),
        stage=stage("latflow.corpus.perturb.perturb_corpus"),
    message:
        "Take utterances at other speeds and volumes: {wildcards.split}"


use rule join_with_pauses as simulate_corpus with:
    input:
        cuts=lambda wildcards: "{}/corpus/{}/cuts.jsonl.gz".format(
            RESULTS, recipe.options.corpus.simulated[wildcards.split].of
        ),
        files=lambda wildcards: simulation_files(
            recipe.options.corpus.simulated[wildcards.split]
        ),
        drawn=lambda wildcards: recipe.options.corpus.simulated[
            wildcards.split
        ].records
        or [],
    output:
        multiext(
            "<results>/corpus/{split}/",
            "recordings.jsonl.gz",
            "supervisions.jsonl.gz",
            "cuts.jsonl.gz",
            "ledger.jsonl",
            "records.jsonl",
            "simulation.json",
        ),
    log:
        "<logs>/simulate_corpus/{split}.log",
    benchmark:
        "<benchmarks>/simulate_corpus/{split}.jsonl"
    wildcard_constraints:
        split="|".join(recipe.options.corpus.simulated) or "none",
    params:
        options=lambda wildcards: recipe.options.corpus.simulated[
            wildcards.split
        ].split()[0],
        free_options=free_simulation_options,
        stage=stage("latflow.simulation.corpus.simulate_corpus"),
    message:
        "Put utterances into rooms and noise: {wildcards.split}"


if recipe.is_synthetic:

    rule write_language:
        output:
            lexicon="<results>/corpus/language/lexicon.txt",
            text="<results>/corpus/language/lm_text.txt",
        log:
            "<logs>/write_language/language.log",
        benchmark:
            "<benchmarks>/write_language/language.jsonl"
        conda:
            "../../envs/corpus.yaml"
        threads: 1
        resources:
            mem_mb=per_attempt(1000),
            runtime=per_attempt(10),
        params:
            lm_sentences=recipe.options.corpus.train.lm_sentences,
            seed=recipe.options.seed,
            stage=stage("latflow.corpus.synthetic.write_synthetic_language"),
        message:
            "Write the lexicon and sentences of the synthetic corpus"
        script:
            "../scripts/run_stage.py"
