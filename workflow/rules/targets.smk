# Named targets: what a user may ask for by name, `snakemake <target>`.
# Products: none of their own.


rule corpus:
    input:
        expand("<results>/corpus/{split}/cuts.jsonl.gz", split=recipe.splits),


rule features:
    input:
        expand("<results>/frames/{split}/meta.json", split=recipe.splits),


rule lang:
    input:
        "<results>/lang/L.fst",
        "<results>/lm/G.fst",


for system in recipe.systems:

    rule:
        name:
            f"gmm_{system}"
        input:
            f"<results>/gmm/{system}/final.mdl",


rule gmm:
    input:
        expand("<results>/gmm/{system}/final.mdl", system=recipe.systems),


for network in recipe.networks:

    rule:
        name:
            f"nnet_{network}"
        input:
            f"<results>/nnet/{network}/weights.safetensors",


rule graphs:
    input:
        expand("<results>/graph/{system}/HCLG.fst", system=recipe.systems),


rule align:
    input:
        f"<results>/align/{recipe.final_system}/train/ali.ark",


rule decode:
    input:
        expand(
            "<results>/decode/{decoding}/{split}/lattices.ark",
            decoding=recipe.decodings,
            split=recipe.evaluation_sets,
        ),


rule score:
    input:
        "<results>/wer.tsv",


rule report:
    input:
        "<results>/report.html",
