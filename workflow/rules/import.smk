# A system that Kaldi trained, with its language, graph and alignments.
# Products: <results>/lang/, <results>/gmm/<system>/, <results>/graph/<system>/HCLG.fst,
#           <results>/align/<system>/train/ali.ark
IMPORT = recipe.options.gmm
IMPORTED = recipe.imported_system or "none"


ruleorder: import_graph > make_graph
ruleorder: import_alignments > align_frames > join_alignments
ruleorder: import_alignments > align_adapted > join_adapted_alignments


if recipe.imported_system is not None:

    rule import_lang:
        input:
            lang=f"{IMPORT.lang}/words.txt",
            phones=f"{IMPORT.lang}/phones.txt",
            lexicon_fst=f"{IMPORT.lang}/L.fst",
            lexicon_fst_disambig=f"{IMPORT.lang}/L_disambig.fst",
        output:
            words="<results>/lang/words.txt",
            phones="<results>/lang/phones.txt",
            topology="<results>/lang/topo",
            lexicon_fst="<results>/lang/L.fst",
            lexicon_fst_disambig="<results>/lang/L_disambig.fst",
        log:
            "<logs>/import_lang/lang.log",
        benchmark:
            "<benchmarks>/import_lang/lang.jsonl"
        conda:
            "../../envs/lang.yaml"
        threads: 1
        resources:
            mem_mb=per_attempt(4000),
            runtime=per_attempt(30),
        params:
            stage=stage("latflow.lang.prepare.import_lang"),
        message:
            "Take the language directory of Kaldi over"
        script:
            "../scripts/run_stage.py"


rule import_system:
    input:
        exp=f"{IMPORT.import_}/final.mdl",
        tree=f"{IMPORT.import_}/tree",
        others=recipe.imported_files(
            "phones.txt", "*_opts", "final.mat", "full.mat", "final.alimdl"
        ),
        lang="<results>/lang/words.txt",
    output:
        model="<results>/gmm/{system}/final.mdl",
        tree="<results>/gmm/{system}/tree",
        ledger="<results>/gmm/{system}/ledger.jsonl",
        info="<results>/gmm/{system}/info.json",
        transform="<results>/gmm/{system}/transform.json",
        alignment_model=(
            ["<results>/gmm/{system}/final.alimdl"]
            if IMPORTED in recipe.adapted_systems
            else []
        ),
    log:
        "<logs>/import_system/{system}.log",
    benchmark:
        "<benchmarks>/import_system/{system}.jsonl"
    wildcard_constraints:
        system=IMPORTED,
    conda:
        "../../envs/gmm.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(30),
    params:
        features=recipe.options.features.values(),
        stage=stage("latflow.gmm.kaldi_import.import_system"),
    message:
        "Take the system {wildcards.system} of Kaldi over"
    script:
        "../scripts/run_stage.py"


rule import_graph:
    input:
        graph=f"{IMPORT.graph}/HCLG.fst",
        system="<results>/gmm/{system}/final.mdl",
        lang="<results>/lang/words.txt",
    output:
        out_fst="<results>/graph/{system}/HCLG.fst",
        facts="<results>/graph/{system}/HCLG.json",
    log:
        "<logs>/import_graph/{system}.log",
    benchmark:
        "<benchmarks>/import_graph/{system}.jsonl"
    wildcard_constraints:
        system="none" if IMPORT.graph is None else IMPORTED,
    conda:
        "../../envs/lang.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(60),
    params:
        stage=stage("latflow.gmm.kaldi_import.import_graph"),
    message:
        "Take the decoding graph of {wildcards.system} over"
    script:
        "../scripts/run_stage.py"


rule import_alignments:
    input:
        pieces=recipe.imported_files("ali.*.gz", "trans.*"),
        frames="<results>/streams/gmm/frames/train/meta.json",
        system="<results>/gmm/{system}/final.mdl",
        lang="<results>/lang/words.txt",
    output:
        alignments="<results>/align/{system}/train/ali.ark",
        ledger="<results>/align/{system}/train/ledger.jsonl",
        statistics="<results>/align/{system}/train/statistics.json",
        transforms=(
            ["<results>/align/{system}/train/trans.ark"]
            if IMPORTED in recipe.adapted_systems
            else []
        ),
    log:
        "<logs>/import_alignments/{system}.log",
    benchmark:
        "<benchmarks>/import_alignments/{system}.jsonl"
    wildcard_constraints:
        system=IMPORTED if recipe.imported_files("ali.*.gz") else "none",
    conda:
        "../../envs/gmm.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(60),
    params:
        exp_dir=IMPORT.import_,
        max_skipped_fraction=skippable,
        stage=stage("latflow.gmm.kaldi_import.import_alignments"),
    message:
        "Take the alignments of {wildcards.system} over"
    script:
        "../scripts/run_stage.py"
