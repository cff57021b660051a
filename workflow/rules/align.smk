# Alignments by a package, adapted or not; alignments as files for people; utterances that look wrong.
# Products: <results>/adapted/<split>/package.json, <results>/align/package/<split>/, <results>/align/<system>/<split>/boundaries/,
# <results>/alignments/<system>/<split>/, <results>/suspects/<split>/

if recipe.options.export_alignments.package is not None:

    rule align_package:
        input:
            package=lambda wildcards: f"{aligning_package(wildcards)}/package.json",
            cuts="<results>/corpus/{split}/cuts.jsonl.gz",
            lexicon=recipe.language.completed_lexicon,
            beside=recipe.language.beside_lexicon,
        output:
            alignments=f"<results>/align/{PACKAGED}/{{split}}/ali.ark",
            log_likes=f"<results>/align/{PACKAGED}/{{split}}/log_likes/meta.json",
            ledger=f"<results>/align/{PACKAGED}/{{split}}/ledger.jsonl",
            statistics=f"<results>/align/{PACKAGED}/{{split}}/statistics.json",
            words=f"<results>/align/{PACKAGED}/{{split}}/lang/words.txt",
        log:
            "<logs>/align_package/{split}.log",
        benchmark:
            "<benchmarks>/align_package/{split}.jsonl"
        conda:
            TORCH
        threads: 16
        resources:
            mem_mb=per_attempt(8000),
            runtime=per_attempt(480),
            gpu=DECODING_GPUS,
        params:
            options=recipe.options.gmm.align.values(),
            lang=recipe.language.completed_options,
            max_skipped_fraction=skippable,
            trust_code=recipe.options.export_alignments.trust_code,
            device=device_of,
            stage=stage("latflow.serving.aligning.align_package", has_workers=True),
        message:
            "Align {wildcards.split} with a package"
        script:
            "../scripts/run_stage.py"


if recipe.options.export_alignments.adapt is not None:

    rule adapt_package:
        input:
            package=f"{recipe.options.export_alignments.package}/package.json",
            cuts="<results>/corpus/{split}/cuts.jsonl.gz",
            lexicon=recipe.language.completed_lexicon,
            beside=recipe.language.beside_lexicon,
        output:
            info="<results>/adapted/{split}/package.json",
            model="<results>/adapted/{split}/model/final.mdl",
        log:
            "<logs>/adapt_package/{split}.log",
        benchmark:
            "<benchmarks>/adapt_package/{split}.jsonl"
        conda:
            "../../envs/serve.yaml"
        threads: 16
        resources:
            mem_mb=per_attempt(8000),
            runtime=per_attempt(480),
        params:
            options=recipe.options.export_alignments.adapt.values(),
            align=recipe.options.gmm.align.values(),
            lang=recipe.language.completed_options,
            max_skipped_fraction=skippable,
            trust_code=recipe.options.export_alignments.trust_code,
            stage=stage("latflow.serving.adapting.adapt_package"),
        message:
            "Adapt a package to {wildcards.split}"
        script:
            "../scripts/run_stage.py"


rule refine_boundaries:
    input:
        alignments="<results>/align/{system}/{split}/ali.ark",
        statistics="<results>/align/{system}/{split}/statistics.json",
        cuts="<results>/corpus/{split}/cuts.jsonl.gz",
        lang=words_of_alignments,
        model=model_of_alignments,
        package=package_with_boundaries,
    output:
        times="<results>/align/{system}/{split}/boundaries/meta.json",
        ledger="<results>/align/{system}/{split}/boundaries/ledger.jsonl",
    log:
        "<logs>/refine_boundaries/{system}.{split}.log",
    benchmark:
        "<benchmarks>/refine_boundaries/{system}.{split}.jsonl"
    wildcard_constraints:
        system="|".join([*recipe.systems, PACKAGED]),
    conda:
        "../../envs/gmm.yaml"
    threads: 16
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(240),
    params:
        first_middle=lambda wildcards: recipe.first_middle(wildcards.system),
        sample_rate=recipe.options.features.sample_rate,
        stage=stage("latflow.align.boundaries.refine_boundaries", has_workers=True),
    message:
        "Refine the boundaries of phones in {wildcards.split} by {wildcards.system}"
    script:
        "../scripts/run_stage.py"


rule export_alignments:
    input:
        alignments="<results>/align/{system}/{split}/ali.ark",
        statistics="<results>/align/{system}/{split}/statistics.json",
        log_likes=log_likes_of,
        boundaries=(
            "<results>/align/{system}/{split}/boundaries/meta.json"
            if recipe.options.export_alignments.boundaries == "refined"
            else []
        ),
        cuts="<results>/corpus/{split}/cuts.jsonl.gz",
        lang=words_of_alignments,
        model=model_of_alignments,
    output:
        summary="<results>/alignments/{system}/{split}/export.json",
    log:
        "<logs>/export_alignments/{system}.{split}.log",
    benchmark:
        "<benchmarks>/export_alignments/{system}.{split}.jsonl"
    wildcard_constraints:
        system="|".join([*recipe.systems, PACKAGED]),
    conda:
        "../../envs/gmm.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(240),
    params:
        options=recipe.export_options,
        first_middle=lambda wildcards: recipe.first_middle(wildcards.system),
        stage=stage("latflow.align.export.export_alignments"),
    message:
        "Write the alignments of {wildcards.split} by {wildcards.system} as files"
    script:
        "../scripts/run_stage.py"


rule decode_biased:
    input:
        frames="<results>/streams/gmm/frames/{split}/meta.json",
        lang=lambda wildcards: f"{recipe.suspect_system.lang_folder}/L_disambig.fst",
        model=lambda wildcards: recipe.suspect_system.model,
        alignments=lambda wildcards: recipe.suspect_system.alignments(wildcards.split),
    output:
        text="<results>/suspects/{split}/biased/hyp.txt",
        ctm="<results>/suspects/{split}/biased/hyp.ctm",
        ledger="<results>/suspects/{split}/biased/ledger.jsonl",
        summary="<results>/suspects/{split}/biased/decode.json",
    log:
        "<logs>/decode_biased/{split}.log",
    benchmark:
        "<benchmarks>/decode_biased/{split}.jsonl"
    conda:
        "../../envs/gmm.yaml"
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(1440),
    params:
        options=recipe.biased_decode_options,
        scales=recipe.options.graph.values(),
        max_skipped_fraction=skippable,
        stage=stage("latflow.decode.biased.decode_biased"),
    message:
        "Decode {wildcards.split} against its own transcripts"
    script:
        "../scripts/run_stage.py"


rule find_suspects:
    input:
        cuts="<results>/corpus/{split}/cuts.jsonl.gz",
        frames="<results>/streams/gmm/frames/{split}/meta.json",
        lang=lambda wildcards: recipe.suspect_system.lexicon,
        model=lambda wildcards: recipe.suspect_system.model,
        alignments=lambda wildcards: recipe.suspect_system.alignments(wildcards.split),
        hypotheses=(
            "<results>/suspects/{split}/biased/hyp.txt"
            if recipe.options.suspects.biased_decoding is not None
            else []
        ),
    output:
        table="<results>/suspects/{split}/suspects.tsv",
        ids="<results>/suspects/{split}/suspects.txt",
    log:
        "<logs>/find_suspects/{split}.log",
    benchmark:
        "<benchmarks>/find_suspects/{split}.jsonl"
    conda:
        "../../envs/gmm.yaml"
    threads: 4
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(120),
    params:
        options=recipe.suspect_options,
        stage=stage("latflow.align.suspects.find_suspects"),
    message:
        "Find utterances of {wildcards.split} that look wrong"
    script:
        "../scripts/run_stage.py"
