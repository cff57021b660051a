# Lexicon, topology, language model, and the decoding graph.
# Products: <results>/lang/, <results>/lm/{lm.arpa,G.fst,<neural>/,<neural>.mixture.json}, <results>/graph/<system>/HCLG.fst


if recipe.imported_system is None:

    if recipe.generates_pronunciations:

        rule complete_lexicon:
            input:
                lexicon=recipe.lexicon(LANGUAGE),
                silence=recipe.silence_probabilities,
                cuts="<results>/corpus/train/cuts.jsonl.gz",
                text=recipe.lm_of_g2p("text", LANGUAGE),
                arpa=recipe.lm_of_g2p("arpa", LANGUAGE),
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
                mem_mb=growing(8000),
                runtime=growing(120),
            params:
                options=recipe.options.lang.values(),
                code=source_digest("latflow.lang.completion.complete_lexicon"),
            message:
                "Generate pronunciations of words that the lexicon lacks"
            script:
                "../scripts/complete_lexicon.py"

    rule make_lang:
        input:
            lexicon=recipe.complete_lexicon(RESULTS, LANGUAGE),
            silence=recipe.silence_probabilities,
            generated=generated_pronunciations(),
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
            mem_mb=growing(4000),
            runtime=growing(20),
        params:
            options=recipe.options.lang.values(),
            code=source_digest("latflow.lang.prepare.make_lang"),
        message:
            "Build phones, words, topology and the lexicon transducer"
        script:
            "../scripts/make_lang.py"


rule reestimate_lexicon:
    input:
        frames="<results>/frames/train/meta.json",
        lang=lexicon_for,
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
        mem_mb=growing(8000),
        runtime=growing(240),
    params:
        code=source_digest("latflow.align.reestimate.reestimate_lexicon"),
    message:
        "Estimate pronunciations and silence from the alignments of {wildcards.system}"
    script:
        "../scripts/reestimate_lexicon.py"


rule make_lm:
    input:
        lang="<results>/lang/words.txt",
        text=lm_inputs,
    output:
        arpa="<results>/lm/{lm}.arpa",
    log:
        "<logs>/make_lm/{lm}.log",
    benchmark:
        "<benchmarks>/make_lm/{lm}.jsonl"
    wildcard_constraints:
        lm="|".join(recipe.ngram_lms),
    conda:
        "../../envs/lang.yaml"
    threads: 1
    resources:
        mem_mb=growing(8000),
        runtime=growing(60),
    params:
        options=options_of_lm,
        code=source_digest("latflow.lang.prepare.make_lm"),
    message:
        "Estimate or fetch the language model {wildcards.lm}"
    script:
        "../scripts/make_lm.py"


rule train_language_model:
    input:
        text=lm_inputs,
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
        lm="|".join(recipe.neural_lms) or "none",
    conda:
        TORCH
    threads: 16
    resources:
        mem_mb=growing(8000),
        runtime=growing(1440),
        gpu=TRAINING_GPUS,
    params:
        options=lambda wildcards: recipe.lm_run_options(wildcards.lm),
        free_options=free_lm_options,
        held_out=lambda wildcards: recipe.neural_lm(wildcards.lm).held_out,
        checkpoints=lambda wildcards: checkpoints_of_lm(wildcards.lm),
        code=source_digest("latflow.training.language_model.train_language_model"),
    message:
        "Train the neural language model {wildcards.lm}"
    script:
        "../scripts/train_language_model.py"


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
        lm="|".join(recipe.neural_lms) or "none",
    conda:
        TORCH
    threads: 4
    resources:
        mem_mb=growing(8000),
        runtime=growing(60),
        gpu=DECODING_GPUS,
    params:
        weight=lambda wildcards: recipe.neural_lm(wildcards.lm).weight,
        device=DEVICE,
        code=source_digest("latflow.decode.rescore_n_best.mix_language_models"),
    message:
        "Choose the weight of {wildcards.lm} beside the n-gram model on dev"
    script:
        "../scripts/mix_language_models.py"


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
        mem_mb=growing(8000),
        runtime=growing(20),
    params:
        code=source_digest("latflow.lang.prepare.make_grammar"),
    message:
        "Turn the language model into the grammar acceptor G"
    script:
        "../scripts/make_grammar.py"


rule make_graph:
    input:
        lang=lambda wildcards: lang_file(wildcards, "L_disambig.fst"),
        grammar="<results>/lm/G.fst",
        model=tree_model_of,
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
        mem_mb=growing(8000),
        runtime=growing(240),
    params:
        options=lambda wildcards: recipe.graph_options(wildcards.system).values(),
        sentences=recipe.options.decode.sentences,
        code=source_digest("latflow.graphs.hclg.make_graph"),
    message:
        "Compose the decoding graph HCLG of {wildcards.system}"
    script:
        "../scripts/make_graph.py"
