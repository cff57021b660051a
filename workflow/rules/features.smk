# Acoustic features: stored as they are extracted, and normalized when they are read.
# Products: <results>/streams/<stream>/features/<split>/, the features of audio that are
# stored; <results>/streams/<stream>/frames/<split>/, what systems read: those, or a
# description of what is computed when it is read, or features made of others. Those of
# the GMM systems are the stream `gmm`.


rule extract_features:
    input:
        cuts="<results>/corpus/{split}/cuts.jsonl.gz",
        extractor=lambda wildcards: recipe.extracted[wildcards.stream].extractor_files,
    output:
        frames="<results>/streams/{stream}/features/{split}/frames.npy",
        statistics="<results>/streams/{stream}/features/{split}/statistics.npy",
        index="<results>/streams/{stream}/features/{split}/index.npz",
        meta="<results>/streams/{stream}/features/{split}/meta.json",
        ledger="<results>/streams/{stream}/features/{split}/ledger.jsonl",
    log:
        "<logs>/extract_features/{stream}.{split}.log",
    benchmark:
        "<benchmarks>/extract_features/{stream}.{split}.jsonl"
    wildcard_constraints:
        stream=in_one_job("extraction", recipe.extracted_streams(stored=True)),
    conda:
        "../../envs/corpus.yaml"
    threads: 16
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(240),
    params:
        options=lambda wildcards: recipe.extracted[wildcards.stream].extraction,
        volumes=lambda wildcards: recipe.extracted[wildcards.stream].has_volumes,
        max_skipped_fraction=skippable,
        stage=stage("latflow.features.extract.extract_features"),
    message:
        "Extract the features {wildcards.stream} of {wildcards.split}"
    script:
        "../scripts/run_stage.py"


rule compute_cmvn:
    input:
        features="<results>/streams/{stream}/features/{split}/meta.json",
        training=lambda wildcards: recipe.extracted[
            wildcards.stream
        ].statistics_before(wildcards.split),
    output:
        meta="<results>/streams/{stream}/frames/{split}/meta.json",
    log:
        "<logs>/compute_cmvn/{stream}.{split}.log",
    benchmark:
        "<benchmarks>/compute_cmvn/{stream}.{split}.jsonl"
    wildcard_constraints:
        stream="|".join(recipe.extracted_streams(stored=True)),
    conda:
        "../../envs/corpus.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(30),
    params:
        cmvn=lambda wildcards: recipe.extracted[wildcards.stream].options.cmvn.values(),
        stage=stage("latflow.features.normalization.compute_cmvn"),
    message:
        "Compute the normalization of the features {wildcards.stream} of {wildcards.split}"
    script:
        "../scripts/run_stage.py"


rule describe_stream:
    input:
        cuts="<results>/corpus/{split}/cuts.jsonl.gz",
        extractor=lambda wildcards: recipe.extracted[wildcards.stream].extractor_files,
    output:
        cuts="<results>/streams/{stream}/frames/{split}/cuts.jsonl",
        index="<results>/streams/{stream}/frames/{split}/index.npz",
        meta="<results>/streams/{stream}/frames/{split}/meta.json",
        ledger="<results>/streams/{stream}/frames/{split}/ledger.jsonl",
    log:
        "<logs>/describe_stream/{stream}.{split}.log",
    benchmark:
        "<benchmarks>/describe_stream/{stream}.{split}.jsonl"
    wildcard_constraints:
        stream="|".join(recipe.extracted_streams(stored=False)) or "none",
    conda:
        "../../envs/corpus.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(120),
    params:
        options=lambda wildcards: recipe.extracted[wildcards.stream].options.values(),
        max_skipped_fraction=skippable,
        stage=stage("latflow.features.live.prepare_live_features"),
    message:
        "Describe the features {wildcards.stream} of {wildcards.split}, to be computed when read"
    script:
        "../scripts/run_stage.py"


rule import_hdf5:
    input:
        cuts="<results>/corpus/{split}/cuts.jsonl.gz",
        files=lambda wildcards: recipe.streams[wildcards.hdf5].files(wildcards.split),
    output:
        frames="<results>/streams/{hdf5}/frames/{split}/frames.npy",
        index="<results>/streams/{hdf5}/frames/{split}/index.npz",
        meta="<results>/streams/{hdf5}/frames/{split}/meta.json",
        ledger="<results>/streams/{hdf5}/frames/{split}/ledger.jsonl",
        labels=directory("<results>/streams/{hdf5}/labels/{split}"),
    log:
        "<logs>/import_hdf5/{hdf5}.{split}.log",
    benchmark:
        "<benchmarks>/import_hdf5/{hdf5}.{split}.jsonl"
    wildcard_constraints:
        hdf5="|".join(recipe.options.nnet.hdf5) or "none",
    conda:
        TORCH
    threads: 1
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(120),
    params:
        options=lambda wildcards: recipe.streams[wildcards.hdf5].options.values(),
        max_skipped_fraction=skippable,
        stage=stage("latflow.training.hdf5.import_split"),
    message:
        "Import {wildcards.hdf5} of {wildcards.split} from HDF5 files"
    script:
        "../scripts/run_stage.py"


rule train_ivectors:
    input:
        frames=lambda wildcards: recipe.streams[wildcards.ivectors].below.of("train"),
    output:
        model="<results>/ivectors/{ivectors}/extractor.npz",
        info="<results>/ivectors/{ivectors}/info.json",
    log:
        "<logs>/train_ivectors/{ivectors}.log",
    benchmark:
        "<benchmarks>/train_ivectors/{ivectors}.jsonl"
    wildcard_constraints:
        ivectors="|".join(recipe.options.nnet.ivectors) or "none",
    conda:
        "../../envs/gmm.yaml"
    threads: 4
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(480),
    params:
        options=lambda wildcards: recipe.streams[wildcards.ivectors].options.values(),
        seed=recipe.options.seed,
        stage=stage("latflow.gmm.ivector_training.train_ivectors"),
    message:
        "Train the extractor of the i-vectors {wildcards.ivectors}"
    script:
        "../scripts/run_stage.py"


rule append_ivectors:
    input:
        frames=lambda wildcards: recipe.streams[wildcards.ivectors].below.of(
            wildcards.split
        ),
        model="<results>/ivectors/{ivectors}/extractor.npz",
    output:
        frames="<results>/streams/{ivectors}/frames/{split}/frames.npy",
        index="<results>/streams/{ivectors}/frames/{split}/index.npz",
        meta="<results>/streams/{ivectors}/frames/{split}/meta.json",
    log:
        "<logs>/append_ivectors/{ivectors}.{split}.log",
    benchmark:
        "<benchmarks>/append_ivectors/{ivectors}.{split}.jsonl"
    wildcard_constraints:
        ivectors="|".join(recipe.options.nnet.ivectors) or "none",
    conda:
        "../../envs/gmm.yaml"
    threads: 4
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(240),
    params:
        stage=stage("latflow.gmm.ivector.append_ivectors"),
    message:
        "Append i-vectors to the features of {wildcards.split}: {wildcards.ivectors}"
    script:
        "../scripts/run_stage.py"


rule paste_features:
    input:
        frames=lambda wildcards: [
            part.of(wildcards.split) for part in recipe.streams[wildcards.pasted].parts
        ],
    output:
        frames="<results>/streams/{pasted}/frames/{split}/frames.npy",
        index="<results>/streams/{pasted}/frames/{split}/index.npz",
        meta="<results>/streams/{pasted}/frames/{split}/meta.json",
        ledger="<results>/streams/{pasted}/frames/{split}/ledger.jsonl",
    log:
        "<logs>/paste_features/{pasted}.{split}.log",
    benchmark:
        "<benchmarks>/paste_features/{pasted}.{split}.jsonl"
    wildcard_constraints:
        pasted="|".join(recipe.options.nnet.pasted) or "none",
    conda:
        "../../envs/corpus.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(120),
    params:
        options=lambda wildcards: recipe.options.nnet.pasted[wildcards.pasted].values(),
        max_skipped_fraction=skippable,
        stage=stage("latflow.features.pasting.paste_features"),
    message:
        "Put features of {wildcards.split} side by side: {wildcards.pasted}"
    script:
        "../scripts/run_stage.py"


rule adapt_frames:
    input:
        frames="<results>/streams/gmm/frames/{split}/meta.json",
        model="<results>/gmm/{system}/final.mdl",
        transforms=transforms_of_split,
    output:
        frames="<results>/streams/{system}/frames/{split}/frames.npy",
        index="<results>/streams/{system}/frames/{split}/index.npz",
        meta="<results>/streams/{system}/frames/{split}/meta.json",
    log:
        "<logs>/adapt_frames/{system}.{split}.log",
    benchmark:
        "<benchmarks>/adapt_frames/{system}.{split}.jsonl"
    wildcard_constraints:
        system="|".join(recipe.gmms) or "none",
    conda:
        "../../envs/gmm.yaml"
    threads: 4
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(120),
    params:
        stage=stage("latflow.gmm.apply.adapt_frames"),
    message:
        "Store the features of {wildcards.system} for {wildcards.split}"
    script:
        "../scripts/run_stage.py"
