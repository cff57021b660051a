# Word error rates.
# Products: <results>/score/<decoding>/<split>/wer.json, <results>/wer.tsv


rule score_wer:
    input:
        lattices="<results>/decode/{decoding}/{split}/lattices.ark",
        scales="<results>/tune/{decoding}/scales.json",
        cuts="<results>/features/{split}/cuts.jsonl.gz",
        words=words_for,
        model=model_of,
    output:
        text="<results>/score/{decoding}/{split}/hyp.txt",
        ctm="<results>/score/{decoding}/{split}/hyp.ctm",
        wer="<results>/score/{decoding}/{split}/wer.json",
        utterances="<results>/score/{decoding}/{split}/per_utterance.tsv",
        speakers="<results>/score/{decoding}/{split}/per_speaker.tsv",
        phones="<results>/score/{decoding}/{split}/hyp_phones.ctm",
        confusions="<results>/score/{decoding}/{split}/confusions.tsv",
    log:
        "<logs>/score_wer/{decoding}.{split}.log",
    benchmark:
        "<benchmarks>/score_wer/{decoding}.{split}.jsonl"
    conda:
        "../../envs/gmm.yaml"
    threads: 4
    resources:
        mem_mb=growing(4000),
        runtime=growing(60),
    params:
        options=recipe.score_options(),
        code=source_digest("latflow.scoring.score"),
    message:
        "Score {wildcards.decoding} on {wildcards.split}"
    script:
        "../scripts/score_wer.py"


rule analyse_lattices:
    input:
        lattices="<results>/decode/{decoding}/{split}/lattices.ark",
        scales="<results>/tune/{decoding}/scales.json",
        cuts="<results>/features/{split}/cuts.jsonl.gz",
        words=words_for,
    output:
        summary="<results>/score/{decoding}/{split}/lattices.json",
        utterances="<results>/score/{decoding}/{split}/lattices.tsv",
    log:
        "<logs>/analyse_lattices/{decoding}.{split}.log",
    benchmark:
        "<benchmarks>/analyse_lattices/{decoding}.{split}.jsonl"
    conda:
        "../../envs/gmm.yaml"
    threads: 4
    resources:
        mem_mb=growing(4000),
        runtime=growing(60),
    params:
        options=recipe.score_options(),
        code=source_digest("latflow.scoring.lattice_quality"),
    message:
        "Measure the lattices of {wildcards.decoding} on {wildcards.split}"
    script:
        "../scripts/analyse_lattices.py"


rule summarise_wer:
    input:
        expand(
            "<results>/score/{decoding}/{split}/wer.json",
            decoding=recipe.decodings,
            split=recipe.evaluation_sets,
        ),
    output:
        table=report(
            "<results>/wer.tsv",
            caption="../report/summarise_wer.rst",
            category="Word error rates",
        ),
    log:
        "<logs>/summarise_wer/wer.log",
    benchmark:
        "<benchmarks>/summarise_wer/wer.jsonl"
    localrule: True
    conda:
        "../../envs/gmm.yaml"
    threads: 1
    params:
        systems=recipe.decodings,
        sets=recipe.evaluation_sets,
        code=source_digest("latflow.scoring.score"),
    message:
        "Collect the word error rates of all systems"
    script:
        "../scripts/summarise_wer.py"
