"""Every model that ranks items, small: options for quick steps, and recipes that learn."""

from typing import Any

from small import VECTORS

from shoal.config.schema import Config
from shoal.runs.run import resolve

DATA = {
    "data.name": "synthetic",
    "data.synthetic.users": 61,
    "data.synthetic.items": 47,
    "data.synthetic.interactions": 1000,
    "data.max_len": 8,
    "train.batch_size": 13,
    "run.progress": False,
    "run.trackers": [],
}
WIDTH, HIDDEN = {"model.embedding_size": 8}, {"model.hidden_size": 8}
BOTH = {**WIDTH, **HIDDEN}
TRANSFORMER = {**HIDDEN, "model.inner_size": 16}
CODES = {
    **TRANSFORMER,
    "model.n_heads": 2,
    "model.code_levels": 2,
    "model.code_size": 16,
    "model.code_steps": 20,
    "model.beam_size": 5,
}
NEGATIVES = {"train.negatives": {"num": 5, "distribution": "popularity"}}
NEIGHBOURS = {
    "model.ui_embedding_size": 8,
    "model.neigh_embedding_size": 6,
    "model.num_conv_kernel": 5,
    "model.mlp_hidden_size": [12, 6],
}
# model (and what of it) -> options. A new model joins by its line.
MODELS: dict[str, dict[str, Any]] = {
    "Pop": {},
    "BPR": WIDTH,
    "NeuMF": {
        "model.mf_embedding_size": 4,
        "model.mlp_embedding_size": 4,
        "model.mlp_hidden_size": [8, 4],
    },
    "LightGCN": WIDTH,
    "LightFM": WIDTH,
    "EASE": {"model.reg_weight": 20.0},
    "ItemKNN": {"model.k": 10},
    "UserKNN": {"model.k": 10},
    "SLIM": {},
    "SLIMElastic": {"model.alpha": 0.1},
    "ADMMSLIM": {"model.lambda2": 20.0},
    "ADMMSLIM centred": {"model.lambda2": 20.0, "model.center_columns": True},
    "AsymKNN": {"model.k": 10, "model.beta": 0.5},
    "NCEPLRec": {"model.rank": 10},
    "IALS": {**WIDTH, "model.epochs": 3},
    "MultiVAE": {"model.mlp_hidden_dimension": [12], "model.latent_dimension": 6},
    "RaCT": {"model.mlp_hidden_dimension": [12], "model.latent_dimension": 12},
    "RaCT finetune": {
        "model.mlp_hidden_dimension": [12],
        "model.latent_dimension": 12,
        "model.train_stage": "finetune",
        "model.pretrain_epochs": 0,
    },
    "RecVAE": {"model.hidden_dimension": 12, "model.latent_dimension": 6},
    "ENMF": WIDTH,
    "MultiDAE": {"model.mlp_hidden_size": [12], "model.latent_dimension": 6},
    "CDAE": WIDTH,
    "CDAE squares": {
        **WIDTH,
        "model.loss_type": "MSE",
        "model.hid_activation": "tanh",
        "model.reg_weight_1": 0.1,
    },
    "MacridVAE": {**WIDTH, "model.kfac": 3, "model.encoder_hidden_size": [12]},
    "MacridVAE plain": {
        **WIDTH,
        "model.kfac": 3,
        "model.encoder_hidden_size": [12, 9],
        "model.nogb": True,
        "model.reg_weights": [0.01, 0.02],
    },
    "DiffRec": {
        "model.dims_dnn": [12, 9],
        "model.history_num_per_term": 1,
        "model.steps": 3,
        "model.norm": True,
    },
    "LDiffRec": {
        "model.in_dims": [8, 12],
        "model.out_dims": [9],
        "model.dims_dnn": [12],
        "model.history_num_per_term": 1,
        "model.noise_schedule": "cosine",
    },
    "DMF": {"model.user_embedding_size": 8, "model.user_hidden_size_list": [9, 7]}
    | {"model.item_embedding_size": 6, "model.item_hidden_size_list": [7]},
    "FISM": {**WIDTH, "model.alpha": 0.5},
    "NAIS": {**WIDTH, "model.weight_size": 6, "model.alpha": 0.3},
    "NAIS concat": {**WIDTH, "model.algorithm": "concat", "model.beta": 1.0},
    "SimpleX": {**WIDTH, "train.negatives.num": 5},
    "NGCF": {**WIDTH, "model.hidden_size_list": [8, 4]},
    "SGL": WIDTH,
    "SGL nodes": {**WIDTH, "model.type": "ND"},
    "SimGCL": WIDTH,
    "XSimGCL": WIDTH,
    "LINE": WIDTH,
    "LINE first order": {**WIDTH, "model.order": 1, "train.negatives.num": 2},
    "ConvNCF": {
        **WIDTH,
        "model.cnn_channels": [1, 4, 4],
        "model.cnn_kernels": [4, 2],
        "model.cnn_strides": [4, 2],
    },
    "NNCF": NEIGHBOURS,
    "NNCF knn": {**NEIGHBOURS, "model.neigh_info_method": "knn"},
    "GCMC": {**WIDTH, "model.gcn_output_dim": 12},
    "SpectralCF": WIDTH,
    "DGCF": WIDTH,
    "NCL": {**WIDTH, "model.num_clusters": 7, "model.warm_up_step": 0}
    | {"model.ssl_reg": 1e-3, "model.proto_reg": 1e-3},
    "LightGCNpp": WIDTH,
    "UltraGCN": {**WIDTH, "model.init_std": 0.1, "model.k": 5, "train.negatives.num": 6},
    "UltraGCN shared": {
        **WIDTH,
        "model.init_std": 0.1,
        "model.share_negatives": True,
        "model.near_itself": False,
        "train.negatives.num": 2,
    },
    "GFCF": {"model.rank": 10},
    "SASRec": TRANSFORMER,
    "SASRec sampled": {**TRANSFORMER, **NEGATIVES, "model.loss_type": "sampled"},
    "SASRec gBCE": {**TRANSFORMER, **NEGATIVES, "model.loss_type": "gBCE"},
    "SASRec smooth": {**TRANSFORMER, "model.label_smoothing": 0.1},
    "BERT4Rec": TRANSFORMER,
    "BERT4Rec gBCE": {**TRANSFORMER, **NEGATIVES, "model.loss_type": "gBCE"},
    "BERT4Rec BPR": {**TRANSFORMER, **NEGATIVES, "model.loss_type": "BPR"},
    "SASRec in_batch": {**TRANSFORMER, "model.loss_type": "in_batch"},
    "BERT4Rec in_batch": {**TRANSFORMER, "model.loss_type": "in_batch"},
    "GRU4Rec": BOTH,
    "GRU4Rec sampled": {**BOTH, **NEGATIVES, "model.loss_type": "sampled"},
    "HSTU": {**HIDDEN, "model.n_heads": 2},
    "HSTU sampled": {
        **HIDDEN,
        **NEGATIVES,
        "model.loss_type": "sampled",
        "model.cosine": True,
        "model.temperature": 0.2,
    },
    "NARM": BOTH,
    "STAMP": WIDTH,
    "Caser": {**WIDTH, "model.nh": 2, "model.nv": 2, "model.heights": 3},
    "NextItNet": {**WIDTH, "model.block_num": 1},
    "FPMC": WIDTH,
    "SRGNN": WIDTH,
    "CORE": {**WIDTH, "model.inner_size": 16},
    "LightSANs": TRANSFORMER,
    "FMLP": HIDDEN,
    "TiSASRec": TRANSFORMER,
    "TIGER": CODES,
    "MIND": WIDTH,
    "ComiRec": WIDTH,
    "DirectAU": WIDTH,
    "CL4SRec": {**TRANSFORMER, "model.cl_weight": 1.0},
    "DSSM": {**WIDTH, "model.mlp_hidden_size": [12]},
    "YoutubeDNN": {**WIDTH, "model.mlp_hidden_size": [12]},
    "Word2Vec": {**WIDTH, "model.window": 3},
}
KNOWLEDGE = {**WIDTH, "data.synthetic.item_features": 2}
MODELS |= {
    "CKE": {**KNOWLEDGE, "model.kg_embedding_size": 6},
    "CFKG": KNOWLEDGE,
    "KGCN": {**KNOWLEDGE, "model.n_iter": 2, "model.neighbor_sample_size": 3},
    "KGCN concat": {**KNOWLEDGE, "model.aggregator": "concat"},
    "KGAT": {**KNOWLEDGE, "model.kg_embedding_size": 6, "model.layers": [6, 4]},
    "RippleNet": {**KNOWLEDGE, "model.n_memory": 4},
    "KGIN": KNOWLEDGE,
    "MKR": {**KNOWLEDGE, "model.low_layers_num": 2},
}
MODELS |= {
    "GRU4RecKG": {**KNOWLEDGE, **BOTH, "model.kg_epochs": 2},
    "KSR": {**KNOWLEDGE, **BOTH, "model.kg_embedding_size": 6, "model.kg_epochs": 2},
    "KSR frozen": {**KNOWLEDGE, **BOTH, "model.kg_epochs": 2, "model.freeze_kg": True},
    "MCCLK": KNOWLEDGE,
    "MCCLK BCE": {
        **KNOWLEDGE,
        "model.loss_type": "BCE",
        "model.build_graph_separately": False,
        "model.k": 3,
    },
    "KTUP": KNOWLEDGE,
    "KTUP soft": {**KNOWLEDGE, "model.use_st_gumbel": False, "model.L1_flag": True},
    "KGNNLS": {**KNOWLEDGE, "model.n_iter": 2, "model.neighbor_sample_size": 3},
}
TOLD = {**TRANSFORMER, "data.synthetic.item_features": 2}
MODELS["TIGER features"] = {**CODES, **TOLD, "model.codes_from": "features"}
MODELS |= {"SASRecF": TOLD, "FDSA": TOLD, "S3Rec": TOLD}
MODELS |= {
    "TransRec": WIDTH,
    "HGN": {**WIDTH, "model.reg_weight": [0.01, 0.001]},
    "HGN max": {**WIDTH, "model.pooling_type": "max"},
    "FOSSIL": {**WIDTH, "model.reg_weight": 0.001},
    "SHAN": WIDTH,
    "NPE": WIDTH,
    "HRM": WIDTH,
    "HRM average": {
        **WIDTH,
        "model.pooling_type_layer_1": "average",
        "model.pooling_type_layer_2": "average",
    },
}
MODELS |= {
    "RepeatNet": BOTH,
    "RepeatNet joint": {**BOTH, "model.joint_train": True},
    "GCSAN": TRANSFORMER,
    "SINE": {**WIDTH, "model.prototype_size": 7},
    "GRU4RecCPR": {**BOTH, "model.reranker_CAN_NUM": 10},
    "GRU4RecCPR mixed": {
        **BOTH,
        "model.reranker_CAN_NUM": "20,5",
        "model.use_out_emb": True,
        "model.n_facet": 2,
        "model.n_facet_context": 2,
        "model.n_facet_reranker": 2,
        "model.weight_mode": "dynamic",
        "model.context_norm": False,
        "model.partition_merging_mode": "half",
        "model.reranker_merging_mode": "add",
        "model.n_facet_MLP": 0,
    },
    "SASRecCPR": {**TRANSFORMER, "model.reranker_CAN_NUM": 10},
    "SASRecCPR mixed": {
        **TRANSFORMER,
        "model.reranker_CAN_NUM": 10,
        "model.n_facet": 3,
        "model.weight_mode": "max_logits",
        "model.n_facet_emb": 0,
        "model.post_remove_context": True,
    },
    "GRU4RecF": {**BOTH, "data.synthetic.item_features": 2},
    "FEARec": TRANSFORMER,
    "FEARec contrast": {
        **TRANSFORMER,
        "model.contrast": "us",
        "model.sim": "cos",
        "model.fredom": True,
        "model.global_ratio": 0.6,
        "model.dual_domain": True,
        "model.spatial_ratio": 0.3,
        "model.std": True,
    },
}
READS_VECTORS = {key.replace("__", "."): value for key, value in VECTORS.items()}
READS_VECTORS["data.item_vectors.rows"] = "none"
# One of each family whose items read vectors.
for name in ("BPR", "LightGCN", "LightFM", "GRU4Rec", "HSTU", "BERT4Rec", "DSSM", "YoutubeDNN"):
    MODELS[f"{name} vectors"] = {**MODELS[name], **READS_VECTORS}
# These look across the global batch: what they say of a part of it is another thing.
ACROSS = [
    "SimGCL",
    "XSimGCL",
    "NCL",
    "UltraGCN shared",
    "DiffRec",
    "LDiffRec",
    "RaCT finetune",
    "DirectAU",
    "CL4SRec",
    "DSSM",
    "DSSM vectors",
    "YoutubeDNN",
    "YoutubeDNN vectors",
    "SASRec in_batch",
    "BERT4Rec in_batch",
    "FEARec contrast",
    "MCCLK",
    "MCCLK BCE",
]


def zoo_config(name: str, **values: Any) -> Config:
    """A config of one line of MODELS; keyword a__b stands for the key a.b."""
    given = {key.replace("__", "."): value for key, value in values.items()}
    return resolve(values={"model": name.split()[0], **DATA, **MODELS[name], **given}).config
