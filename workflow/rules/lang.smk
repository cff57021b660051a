# Lexicon, topology, language model, and the decoding graph.
# Products: <results>/lang/, <results>/lm/{lm.arpa,G.fst,<neural>/,<neural>.mixture.json}, <results>/graph/<system>/HCLG.fst


if recipe.imported_system is None:

    if recipe.language.generates_pronunciations:

        rule complete_lexicon:
            input:
                lexicon=recipe.language.lexicon,
                beside=recipe.language.beside_lexicon,
                cuts="<results>/corpus/train/cuts.jsonl.gz",
                text=recipe.language.g2p_words("text"),
                arpa=recipe.language.g2p_words("arpa"),
                model=recipe.options.lang.g2p.model or [],
            output:
                completed="<results>/g2p/lexicon.txt",
                generated="<results>/g2p/generated.tsv",
            log:
                "<logs>/complete_lexicon/lexicon.log",
            benchmark:
                "<benchmarks>/complete_lexicon/lexicon.jsonl"
            conda:
                "../../envs/lang.yaml"
            threads: 8
            resources:
                mem_mb=per_attempt(8000),
                runtime=per_attempt(120),
            params:
                options=recipe.options.lang.values(),
                stage=stage("latflow.lang.completion.complete_lexicon"),
            message:
                "Generate pronunciations of words that the lexicon lacks"
            script:
                "../scripts/run_stage.py"

    if recipe.options.package.g2p is True and not recipe.options.lang.g2p.model:

        rule train_g2p:
            input:
                lexicon=recipe.language.lexicon,
                beside=recipe.language.beside_lexicon,
            output:
                model="<results>/g2p/model.bin",
            log:
                "<logs>/train_g2p/model.log",
            benchmark:
                "<benchmarks>/train_g2p/model.jsonl"
            conda:
                "../../envs/lang.yaml"
            threads: 1
            resources:
                mem_mb=per_attempt(8000),
                runtime=per_attempt(60),
            params:
                options=recipe.options.lang.values(),
                stage=stage("latflow.lang.completion.train_model"),
            message:
                "Train a G2P model on the lexicon"
            script:
                "../scripts/run_stage.py"

    rule make_lang:
        input:
            lexicon=recipe.language.completed_lexicon,
            beside=recipe.language.beside_lexicon,
            generated=recipe.language.generated,
        output:
            words="<results>/lang/words.txt",
            phones="<results>/lang/phones.txt",
            topology="<results>/lang/topo",
            lexicon_fst="<results>/lang/L.fst",
            lexicon_fst_disambig="<results>/lang/L_disambig.fst",
        log:
            "<logs>/make_lang/lang.log",
        benchmark:
            "<benchmarks>/make_lang/lang.jsonl"
        conda:
            "../../envs/lang.yaml"
        threads: 1
        resources:
            mem_mb=per_attempt(4000),
            runtime=per_attempt(20),
        params:
            options=recipe.options.lang.values(),
            stage=stage("latflow.lang.prepare.make_lang"),
        message:
            "Build phones, words, topology and the lexicon transducer"
        script:
            "../scripts/run_stage.py"


rule reestimate_lexicon:
    input:
        frames="<results>/streams/gmm/frames/train/meta.json",
        lang=lambda wildcards: system_of(wildcards).lexicon,
        alignments="<results>/align/{system}/train/ali.ark",
        model="<results>/gmm/{system}/final.mdl",
    output:
        words="<results>/lang_{system}/words.txt",
        lexicon_fst="<results>/lang_{system}/L.fst",
        lexicon_fst_disambig="<results>/lang_{system}/L_disambig.fst",
        probabilities="<results>/lang_{system}/lexiconp_silprob.txt",
    log:
        "<logs>/reestimate_lexicon/{system}.log",
    benchmark:
        "<benchmarks>/reestimate_lexicon/{system}.jsonl"
    conda:
        "../../envs/lang.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(240),
    params:
        stage=stage("latflow.align.reestimate.reestimate_lexicon"),
    message:
        "Estimate pronunciations and silence from the alignments of {wildcards.system}"
    script:
        "../scripts/run_stage.py"


rule make_lm:
    input:
        lang="<results>/lang/words.txt",
        text=lambda wildcards: recipe.language.models[wildcards.lm].inputs,
    output:
        arpa="<results>/lm/{lm}.arpa",
    log:
        "<logs>/make_lm/{lm}.log",
    benchmark:
        "<benchmarks>/make_lm/{lm}.jsonl"
    wildcard_constraints:
        lm="|".join(recipe.language.ngram_models),
    conda:
        "../../envs/lang.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(60),
    params:
        options=lambda wildcards: recipe.language.models[wildcards.lm].options.values(),
        adds_words=lambda wildcards: wildcards.lm == "lm" and recipe.adds_words,
        stage=stage("latflow.lang.prepare.make_lm"),
    message:
        "Estimate or fetch the language model {wildcards.lm}"
    script:
        "../scripts/run_stage.py"


rule train_language_model:
    input:
        text=lambda wildcards: recipe.language.models[wildcards.lm].inputs,
        lang="<results>/lang/words.txt",
    output:
        weights="<results>/lm/{lm}/weights.safetensors",
        words="<results>/lm/{lm}/words.txt",
        meta="<results>/lm/{lm}/meta.json",
    log:
        "<logs>/train_language_model/{lm}.log",
    benchmark:
        "<benchmarks>/train_language_model/{lm}.jsonl"
    wildcard_constraints:
        lm="|".join(recipe.language.neural_models) or "none",
    conda:
        TORCH
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(1440),
        gpu=TRAINING_GPUS,
    params:
        options=lambda wildcards: recipe.language.models[wildcards.lm].training_options,
        free_options=free_options_of_lm,
        held_out=lambda wildcards: recipe.language.models[wildcards.lm].neural.held_out,
        checkpoints=lambda wildcards: recipe.language.models[wildcards.lm].checkpoints,
        stage=stage("latflow.training.language_model.train_language_model"),
    message:
        "Train the neural language model {wildcards.lm}"
    script:
        "../scripts/run_stage.py"


rule mix_language_models:
    input:
        network="<results>/lm/{lm}/weights.safetensors",
        arpa="<results>/lm/lm.arpa",
        cuts="<results>/corpus/dev/cuts.jsonl.gz",
    output:
        mixture="<results>/lm/{lm}.mixture.json",
    log:
        "<logs>/mix_language_models/{lm}.log",
    benchmark:
        "<benchmarks>/mix_language_models/{lm}.jsonl"
    wildcard_constraints:
        lm="|".join(recipe.language.neural_models) or "none",
    conda:
        TORCH
    threads: 4
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(60),
        gpu=DECODING_GPUS,
    params:
        weight=lambda wildcards: recipe.language.models[wildcards.lm].neural.weight,
        device=device_of,
        stage=stage("latflow.decode.rescore_n_best.mix_language_models"),
    message:
        "Choose the weight of {wildcards.lm} beside the n-gram model on dev"
    script:
        "../scripts/run_stage.py"


rule make_grammar:
    input:
        lang="<results>/lang/words.txt",
        arpa="<results>/lm/lm.arpa",
    output:
        grammar="<results>/lm/G.fst",
    log:
        "<logs>/make_grammar/lm.log",
    benchmark:
        "<benchmarks>/make_grammar/lm.jsonl"
    conda:
        "../../envs/lang.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(20),
    params:
        adds_words=recipe.adds_words,
        stage=stage("latflow.lang.prepare.make_grammar"),
    message:
        "Turn the language model into the grammar acceptor G"
    script:
        "../scripts/run_stage.py"


rule make_graph:
    input:
        lang=lambda wildcards: f"{system_of(wildcards).lang_folder}/L_disambig.fst",
        grammar="<results>/lm/G.fst",
        model=lambda wildcards: system_of(wildcards).tree_model,
    output:
        graph="<results>/graph/{system}/HCLG.fst",
        facts="<results>/graph/{system}/HCLG.json",
    log:
        "<logs>/make_graph/{system}.log",
    benchmark:
        "<benchmarks>/make_graph/{system}.jsonl"
    wildcard_constraints:
        system="|".join(recipe.graph_owners),
    conda:
        "../../envs/lang.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(240),
    params:
        options=lambda wildcards: system_of(wildcards).graph_options.values(),
        sentences=recipe.options.decode.sentences,
        composition=recipe.options.decode.composition,
        stage=stage("latflow.graphs.hclg.make_graph"),
    message:
        "Compose the decoding graph HCLG of {wildcards.system}"
    script:
        "../scripts/run_stage.py"
