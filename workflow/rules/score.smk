# Words of decoded sets, and word error rates of those with transcripts.
# Products: <results>/score/<decoding>/<split>/{hyp.txt,wer.json}, <results>/wer.tsv


rule recognize_words:
    input:
        lattices="<results>/decode/{decoding}/{split}/lattices.ark",
        scales="<results>/tune/{decoding}/scales.json",
        cuts="<results>/corpus/{split}/cuts.jsonl.gz",
        features=scored_features_of,
        lang=lambda wildcards: system_of(wildcards).words,
        model=lambda wildcards: system_of(wildcards).model,
    output:
        text="<results>/score/{decoding}/{split}/hyp.txt",
        ctm="<results>/score/{decoding}/{split}/hyp.ctm",
        phones="<results>/score/{decoding}/{split}/hyp_phones.ctm",
    log:
        "<logs>/recognize_words/{decoding}.{split}.log",
    benchmark:
        "<benchmarks>/recognize_words/{decoding}.{split}.jsonl"
    wildcard_constraints:
        split="|".join(recipe.untranscribed_sets) or "none",
    conda:
        "../../envs/gmm.yaml"
    threads: 4
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(60),
    params:
        options=recipe.options.score.values(),
        stage=stage("latflow.scoring.score.recognize"),
    message:
        "Write the words that {wildcards.decoding} finds in {wildcards.split}"
    script:
        "../scripts/run_stage.py"


use rule recognize_words as score_wer with:
    output:
        text="<results>/score/{decoding}/{split}/hyp.txt",
        ctm="<results>/score/{decoding}/{split}/hyp.ctm",
        wer="<results>/score/{decoding}/{split}/wer.json",
        utterances="<results>/score/{decoding}/{split}/per_utterance.tsv",
        speakers="<results>/score/{decoding}/{split}/per_speaker.tsv",
        phones="<results>/score/{decoding}/{split}/hyp_phones.ctm",
        confusions="<results>/score/{decoding}/{split}/confusions.tsv",
        lattices="<results>/score/{decoding}/{split}/lattices.json",
        lattices_by_utterance="<results>/score/{decoding}/{split}/lattices.tsv",
    log:
        "<logs>/score_wer/{decoding}.{split}.log",
    benchmark:
        "<benchmarks>/score_wer/{decoding}.{split}.jsonl"
    wildcard_constraints:
        split="|".join(["train", *recipe.evaluation_sets]),
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(20),
    params:
        seed=recipe.options.seed,
        stage=stage("latflow.scoring.score.score"),
    message:
        "Score {wildcards.decoding} on {wildcards.split}"


rule summarize_wer:
    input:
        scores=expand(
            "<results>/score/{decoding}/{split}/wer.json",
            decoding=recipe.decodings,
            split=recipe.evaluation_sets,
        ),
    output:
        table=report(
            "<results>/wer.tsv",
            caption="../report/summarize_wer.rst",
            category="Word error rates",
        ),
    log:
        "<logs>/summarize_wer/wer.log",
    benchmark:
        "<benchmarks>/summarize_wer/wer.jsonl"
    localrule: True
    conda:
        "../../envs/gmm.yaml"
    threads: 1
    params:
        stage=stage("latflow.scoring.results.summarize_wer"),
    message:
        "Collect the word error rates of all systems"
    script:
        "../scripts/run_stage.py"
