"""What RecBole's keys and names are here."""

from __future__ import annotations

# Keys of RecBole that every config has -> what a model here has instead.
KEYS_OF_RECBOLE = {
    "USER_ID_FIELD": "self.USER_ID",
    "ITEM_ID_FIELD": "self.ITEM_ID",
    "LABEL_FIELD": "self.LABEL",
    "NEG_PREFIX": '"neg_"',
    "LIST_SUFFIX": '"_list"',
    "ITEM_LIST_LENGTH_FIELD": '"item_length"',
    "MAX_ITEM_LIST_LENGTH": "facts.max_len",
    "device": "self.device",
}
# Keys of a run, which no option of a model stands for.
KEYS_OF_RUNS = {
    "train_batch_size": "train.batch_size",
    "eval_batch_size": "eval.batch_size",
    "epochs": "train.epochs",
    "learning_rate": "train.optimizer.lr",
    "weight_decay": "train.optimizer",
    "seed": "run.seed",
    "dataset": "data.name",
    "data_path": "data.path",
    "topk": "eval.topk",
}
# Fields of interactions that a model is not given here.
KEYS_WITHOUT_FIELD = ("RATING_FIELD", "TIME_FIELD", "HEAD_ENTITY_ID_FIELD", "ENTITY_ID_FIELD")

# The values that RecBole's own property files have most often.
USUAL = {
    "embedding_size": 64,
    "hidden_size": 64,
    "inner_size": 256,
    "n_layers": 2,
    "num_layers": 1,
    "n_heads": 2,
    "dropout": 0.1,
    "dropout_prob": 0.3,
    "hidden_dropout_prob": 0.5,
    "attn_dropout_prob": 0.5,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "loss_type": "CE",
    "mlp_hidden_size": [64, 64],
    "reg_weight": 1e-5,
    "require_pow": False,
}

# Fields of `interaction` that are there, by kind of model. USER_ID stands for the name it has.
FIELDS_OF = {
    "GeneralRecommender": {"USER_ID", "ITEM_ID", "NEG_ITEM_ID", "LABEL"},
    "SequentialRecommender": {
        "USER_ID",
        "ITEM_ID",
        "NEG_ITEM_ID",
        "POS_ITEM_ID",
        "ITEM_SEQ",
        "ITEM_SEQ_LEN",
    },
    "ContextRecommender": {"LABEL"},
}
USUAL_FIELDS = {
    "user_id": "USER_ID",
    "item_id": "ITEM_ID",
    "neg_item_id": "NEG_ITEM_ID",
    "item_id_list": "ITEM_SEQ",
    "item_length": "ITEM_SEQ_LEN",
    "label": "LABEL",
}
# What `dataset` answers here (shoal.compat.recbole.interaction.TrainingData).
OF_DATASET = {
    "num",
    "user_num",
    "item_num",
    "inter_num",
    "uid_field",
    "iid_field",
    "inter_matrix",
    "history_item_matrix",
    "history_user_matrix",
    "inter_feat",
}
# Functions that draw numbers in another order on each number of processes.
RANDOM = {
    "torch.rand",
    "torch.randn",
    "torch.rand_like",
    "torch.randn_like",
    "torch.randint",
    "torch.randperm",
    "torch.bernoulli",
    "torch.multinomial",
    "torch.normal",
    "torch.nn.functional.dropout",
    "torch.nn.functional.gumbel_softmax",
    "torch.dropout",
}
DRAWING_MODULES = ("random.", "numpy.random.")
# Of a model for clicks: what RecBole's base has and the base here has not.
NOT_OF_CONTEXT = {
    "double_tower",
    "field_names",
    "token_field_names",
    "token_field_dims",
    "float_field_names",
    "float_field_dims",
    "token_embedding_table",
    "token_field_offsets",
    "double_embed_input_fields",
    "token_seq_field_names",
    "token_seq_embedding_table",
    "embed_token_fields",
}
