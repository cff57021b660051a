# Lexicon, topology, language model, and the decoding graph.
# Products: <results>/lang/, <results>/lm/{lm.arpa,G.fst}, <results>/graph/<system>/HCLG.fst


rule make_lang:
    input:
        lexicon=recipe.lexicon(LANGUAGE),
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
        mem_mb=4000,
        runtime=60,
    params:
        options=recipe.lang_options(),
        code=source_digest("latflow.lang.prepare"),
    message:
        "Build phones, words, topology and the lexicon transducer"
    script:
        "../scripts/make_lang.py"


rule make_lm:
    input:
        words="<results>/lang/words.txt",
        text=recipe.lm_inputs(RESULTS, LANGUAGE),
    output:
        arpa="<results>/lm/lm.arpa",
    log:
        "<logs>/make_lm/lm.log",
    benchmark:
        "<benchmarks>/make_lm/lm.jsonl"
    conda:
        "../../envs/lang.yaml"
    threads: 1
    resources:
        mem_mb=8000,
        runtime=120,
    params:
        options=recipe.lm_options(LANGUAGE),
        code=source_digest("latflow.lang.prepare"),
    message:
        "Estimate or fetch the language model"
    script:
        "../scripts/make_lm.py"


rule make_grammar:
    input:
        words="<results>/lang/words.txt",
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
        mem_mb=8000,
        runtime=60,
    params:
        code=source_digest("latflow.lang.prepare"),
    message:
        "Turn the language model into the grammar acceptor G"
    script:
        "../scripts/make_grammar.py"


rule make_graph:
    input:
        lexicon_fst="<results>/lang/L_disambig.fst",
        grammar="<results>/lm/G.fst",
        model="<results>/gmm/{system}/final.mdl",
    output:
        graph="<results>/graph/{system}/HCLG.fst",
        facts="<results>/graph/{system}/HCLG.json",
    log:
        "<logs>/make_graph/{system}.log",
    benchmark:
        "<benchmarks>/make_graph/{system}.jsonl"
    conda:
        "../../envs/lang.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 16000 * attempt,
        runtime=240,
    params:
        options=recipe.config["graph"],
        code=source_digest("latflow.lang.composition"),
    message:
        "Compose the decoding graph HCLG of {wildcards.system}"
    script:
        "../scripts/make_graph.py"
