# Word error rates.
# Products: <results>/score/<system>/<split>/wer.json, <results>/wer.tsv


rule score_wer:
    input:
        lattices="<results>/decode/{system}/{split}/lattices.ark",
        scales="<results>/tune/{system}/scales.json",
        cuts="<results>/features/{split}/cuts.jsonl.gz",
        words="<results>/lang/words.txt",
        model="<results>/gmm/{system}/final.mdl",
    output:
        text="<results>/score/{system}/{split}/hyp.txt",
        ctm="<results>/score/{system}/{split}/hyp.ctm",
        wer="<results>/score/{system}/{split}/wer.json",
        utterances="<results>/score/{system}/{split}/per_utterance.tsv",
        speakers="<results>/score/{system}/{split}/per_speaker.tsv",
        phones="<results>/score/{system}/{split}/hyp_phones.ctm",
        confusions="<results>/score/{system}/{split}/confusions.tsv",
    log:
        "<logs>/score_wer/{system}.{split}.log",
    benchmark:
        "<benchmarks>/score_wer/{system}.{split}.jsonl"
    conda:
        "../../envs/gmm.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        options=recipe.score_options(),
        code=source_digest("latflow.scoring.score"),
    message:
        "Score {wildcards.system} on {wildcards.split}"
    script:
        "../scripts/score_wer.py"


rule summarise_wer:
    input:
        expand(
            "<results>/score/{system}/{split}/wer.json",
            system=recipe.systems,
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
        systems=list(recipe.systems),
        sets=recipe.evaluation_sets,
        code=source_digest("latflow.scoring.score"),
    message:
        "Collect the word error rates of all systems"
    script:
        "../scripts/summarise_wer.py"
