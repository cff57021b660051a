# Named targets: what a user may ask for by name, `snakemake <target>`.
# Products: none of their own.


rule corpus:
    input:
        expand("<results>/corpus/{split}/cuts.jsonl.gz", split=recipe.splits),


rule features:
    input:
        expand("<results>/streams/gmm/frames/{split}/meta.json", split=recipe.splits),


rule lang:
    input:
        "<results>/lang/L.fst",
        "<results>/lm/G.fst",


for system in recipe.gmms:

    rule:
        name:
            f"gmm_{system}"
        input:
            f"<results>/gmm/{system}/final.mdl",


rule gmm:
    input:
        expand("<results>/gmm/{system}/final.mdl", system=recipe.gmms),


for network in recipe.networks:

    rule:
        name:
            f"nnet_{network}"
        input:
            f"<results>/nnet/{network}/weights.safetensors",


rule graphs:
    input:
        expand("<results>/graph/{system}/HCLG.fst", system=recipe.graph_owners),


rule align:
    input:
        expand("<results>/align/{system}/train/ali.ark", system=list(recipe.gmms)[-1:]),


rule export:
    input:
        expand(
            "<results>/alignments/{system}/{split}/export.json",
            system=recipe.exported_systems,
            split=recipe.options.export_alignments.sets,
        ),


rule decode:
    input:
        expand(
            "<results>/decode/{decoding}/{split}/lattices.ark",
            decoding=recipe.decodings,
            split=recipe.decoded_sets,
        ),


rule score:
    input:
        "<results>/wer.tsv",
        expand(
            "<results>/score/{decoding}/{split}/hyp.txt",
            decoding=recipe.decodings,
            split=recipe.untranscribed_sets,
        ),


rule report:
    input:
        "<results>/report.html",


rule package:
    input:
        packages_asked_for,


rule capacity:
    input:
        expand(
            "<results>/capacity/{system}.tsv", system=recipe.options.capacity.systems
        ),


rule suspects:
    input:
        expand(
            "<results>/suspects/{split}/suspects.tsv",
            split=recipe.options.suspects.sets,
        ),
