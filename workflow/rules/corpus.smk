# Recordings and transcripts become Lhotse manifests.
# Products: <results>/corpus/<split>/{recordings,supervisions,cuts}.jsonl.gz


rule prepare_corpus:
    input:
        source_files,
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
        mem_mb=growing(4000),
        runtime=growing(240),
    params:
        source=source_of,
        seed=recipe.config["seed"],
        max_skipped_fraction=recipe.max_skipped_fraction,
        code=source_digest("latflow.corpus.prepare"),
    message:
        "Prepare the {wildcards.split} recordings and transcripts"
    script:
        "../scripts/prepare_corpus.py"


if recipe.holds_out_dev:

    rule hold_out:
        input:
            "<results>/corpus/full/cuts.jsonl.gz",
        output:
            multiext(
                "<results>/corpus/train/",
                "recordings.jsonl.gz",
                "supervisions.jsonl.gz",
                "cuts.jsonl.gz",
                "ledger.jsonl",
            ),
            multiext(
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
            mem_mb=growing(4000),
            runtime=growing(60),
        params:
            dev=recipe.config["corpus"]["dev"],
            seed=recipe.config["seed"],
            code=source_digest("latflow.corpus.prepare"),
        message:
            "Hold a dev set out of train"
        script:
            "../scripts/hold_out.py"


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
            mem_mb=growing(1000),
            runtime=growing(10),
        params:
            options={"lm_sentences": recipe.config["corpus"]["train"]["lm_sentences"]},
            seed=recipe.config["seed"],
            code=source_digest("latflow.corpus.synthetic"),
        message:
            "Write the lexicon and sentences of the synthetic corpus"
        script:
            "../scripts/write_language.py"
