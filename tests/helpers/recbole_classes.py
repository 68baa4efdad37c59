"""Model classes as people write them for RecBole: texts, which tests translate and never run."""

SIDE_LOSS = '''"""Matrix factorisation with a second loss."""

import torch
import torch.nn as nn

from recbole.model.abstract_recommender import GeneralRecommender
from recbole.model.init import xavier_normal_initialization
from recbole.model.loss import BPRLoss, EmbLoss
from recbole.utils import InputType


class PopularMF(GeneralRecommender):
    """A vector per user and per item; what is popular is learned beside them."""

    input_type = InputType.PAIRWISE

    def __init__(self, config, dataset):
        super(PopularMF, self).__init__(config, dataset)

        # the width of vectors
        self.embedding_size = config["embedding_size"]
        self.side_weight = config["side_weight"]
        self.reg_weight = config["reg_weight"]
        self.device = config["device"]

        self.user_embedding = nn.Embedding(self.n_users, self.embedding_size)
        self.item_embedding = nn.Embedding(self.n_items, self.embedding_size)
        self.popularity = nn.Sequential(nn.Dropout(0.2), nn.Linear(self.embedding_size, 1))
        self.loss, self.reg = BPRLoss(), EmbLoss()
        self.apply(xavier_normal_initialization)

    def forward(self, user, item):
        return self.user_embedding(user), self.item_embedding(item)

    def calculate_loss(self, interaction):
        user = interaction[self.USER_ID]
        pos, neg = interaction[self.ITEM_ID], interaction[self.NEG_ITEM_ID]
        user_e, pos_e = self.forward(user, pos)  # both at once
        neg_e = self.item_embedding(neg)
        loss = self.loss((user_e * pos_e).sum(1), (user_e * neg_e).sum(1))
        side = self.loss(self.popularity(pos_e).squeeze(1), self.popularity(neg_e).squeeze(1))
        penalty = self.reg(user_e, pos_e, neg_e, require_pow=True)
        return loss, self.side_weight * side, self.reg_weight * penalty

    def predict(self, interaction):
        user_e, item_e = self(interaction[self.USER_ID], interaction[self.ITEM_ID])
        return (user_e * item_e).sum(1)

    def full_sort_predict(self, interaction):
        user_e = self.user_embedding(interaction[self.USER_ID])
        return torch.matmul(user_e, self.item_embedding.weight.transpose(0, 1)).view(-1)
'''

GRAPH = """import numpy as np
import scipy.sparse as sp
import torch
from torch import nn

from recbole.model.abstract_recommender import GeneralRecommender
from recbole.model.init import xavier_uniform_initialization
from recbole.model.loss import BPRLoss
from recbole.utils import InputType


class SmoothGraph(GeneralRecommender):
    input_type = InputType.PAIRWISE

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.interactions = dataset.inter_matrix(form="coo").astype(np.float32)
        self.dim = config["embedding_size"]
        self.n_layers = config["n_layers"] or 2
        self.users = torch.nn.Embedding(num_embeddings=self.n_users, embedding_dim=self.dim)
        self.items = torch.nn.Embedding(num_embeddings=self.n_items, embedding_dim=self.dim)
        self.bpr = BPRLoss()
        self.restore_user_e = None
        self.restore_item_e = None
        self.adjacency = self.build_adjacency().to(self.device)
        self.apply(xavier_uniform_initialization)
        self.other_parameter_name = ["restore_user_e", "restore_item_e"]

    def build_adjacency(self):
        size = self.n_users + self.n_items
        matrix = sp.dok_matrix((size, size), dtype=np.float32)
        pairs = self.interactions
        ones = dict(zip(zip(pairs.row, pairs.col + self.n_users), [1] * pairs.nnz))
        ones.update(dict(zip(zip(pairs.col + self.n_users, pairs.row), [1] * pairs.nnz)))
        matrix._update(ones)
        degrees = np.array((matrix > 0).sum(axis=1)).flatten() + 1e-7
        scale = sp.diags(np.power(degrees, -0.5))
        found = sp.coo_matrix(scale * matrix * scale)
        places = torch.LongTensor(np.array([found.row, found.col]))
        return torch.sparse_coo_tensor(places, torch.FloatTensor(found.data), found.shape)

    def forward(self):
        layer = torch.cat([self.users.weight, self.items.weight], dim=0)
        layers = [layer]
        for _ in range(self.n_layers):
            layer = torch.sparse.mm(self.adjacency, layer)
            layers.append(layer)
        mean = torch.stack(layers, dim=1).mean(dim=1)
        return torch.split(mean, [self.n_users, self.n_items])

    def calculate_loss(self, interaction):
        if self.restore_user_e is not None or self.restore_item_e is not None:
            self.restore_user_e, self.restore_item_e = None, None
        users, items = self.forward()
        user_e = users[interaction[self.USER_ID]]
        pos = (user_e * items[interaction[self.ITEM_ID]]).sum(dim=1)
        neg = (user_e * items[interaction[self.NEG_ITEM_ID]]).sum(dim=1)
        own = self.users(interaction[self.USER_ID])
        return self.bpr(pos, neg) + 1e-4 * own.square().sum(dim=1).mean()

    def predict(self, interaction):
        users, items = self.forward()
        return (users[interaction[self.USER_ID]] * items[interaction[self.ITEM_ID]]).sum(dim=1)

    def full_sort_predict(self, interaction):
        if self.restore_user_e is None or self.restore_item_e is None:
            self.restore_user_e, self.restore_item_e = self.forward()
        user_e = self.restore_user_e[interaction[self.USER_ID]]
        return torch.matmul(user_e, self.restore_item_e.transpose(0, 1)).view(-1)
"""

SEQUENCE = '''import torch
from torch import nn
from torch.nn.init import xavier_normal_

from recbole.model.abstract_recommender import SequentialRecommender
from recbole.model.layers import FeedForward, TransformerEncoder
from recbole.model.loss import BPRLoss


class Gate(nn.Module):
    """How much of each of two states is kept."""

    def __init__(self, config):
        super().__init__()
        self.linear = nn.Linear(2 * config["hidden_size"], config["hidden_size"])
        self.scale = config["MAX_ITEM_LIST_LENGTH"] ** -0.5

    def forward(self, one, other):
        share = torch.sigmoid(self.scale * self.linear(torch.cat([one, other], -1)))
        return share * one + (1 - share) * other


class GatedAttention(SequentialRecommender):
    def __init__(self, config, dataset):
        super(GatedAttention, self).__init__(config, dataset)
        self.hidden_size = config["hidden_size"]
        self.loss_type = config["loss_type"]
        self.initializer_range = config["initializer_range"]
        self.item_embedding = nn.Embedding(self.n_items, self.hidden_size, padding_idx=0)
        self.position_embedding = nn.Embedding(self.max_seq_length, self.hidden_size)
        self.gru = nn.GRU(self.hidden_size, self.hidden_size, batch_first=True)
        self.encoder = TransformerEncoder(
            n_layers=config["n_layers"],
            n_heads=2,
            hidden_size=self.hidden_size,
            inner_size=2 * self.hidden_size,
            hidden_dropout_prob=config["hidden_dropout_prob"],
            attn_dropout_prob=0.0,
        )
        self.gate = Gate(config)
        self.last = FeedForward(self.hidden_size, 2 * self.hidden_size, 0.0, "gelu", 1e-12)
        self.dropout = nn.Dropout(config["hidden_dropout_prob"])
        if self.loss_type == "BPR":
            self.loss_fct = BPRLoss()
        elif self.loss_type == "CE":
            self.loss_fct = nn.CrossEntropyLoss()
        else:
            raise ValueError(f"loss_type is {self.loss_type}; it is BPR or CE")
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=self.initializer_range)
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight.data[module.padding_idx].zero_()
        elif isinstance(module, nn.GRU):
            xavier_normal_(module.weight_hh_l0)

    def forward(self, item_seq, item_seq_len):
        places = torch.arange(item_seq.size(1), device=item_seq.device).unsqueeze(0)
        rows = self.item_embedding(item_seq) + self.position_embedding(places)
        rows = self.dropout(rows)
        attended = self.encoder(rows, self.get_attention_mask(item_seq))[-1]
        read, _ = self.gru(rows)
        last = item_seq_len - 1
        states = [self.gather_indexes(states, last) for states in (attended, read)]
        return self.last(self.gate(*states))

    def calculate_loss(self, interaction):
        state = self.forward(interaction[self.ITEM_SEQ], interaction[self.ITEM_SEQ_LEN])
        pos_items = interaction[self.POS_ITEM_ID]
        if self.loss_type == "BPR":
            pos = (state * self.item_embedding(pos_items)).sum(-1)
            neg = (state * self.item_embedding(interaction[self.NEG_ITEM_ID])).sum(-1)
            return self.loss_fct(pos, neg)
        logits = torch.matmul(state, self.item_embedding.weight.transpose(0, 1))
        return self.loss_fct(logits, pos_items)

    def predict(self, interaction):
        state = self.forward(interaction[self.ITEM_SEQ], interaction[self.ITEM_SEQ_LEN])
        return torch.mul(state, self.item_embedding(interaction[self.ITEM_ID])).sum(dim=1)

    def full_sort_predict(self, interaction):
        state = self.forward(interaction[self.ITEM_SEQ], interaction[self.ITEM_SEQ_LEN])
        return torch.matmul(state, self.item_embedding.weight.transpose(0, 1))
'''

POINTWISE = """import torch
from torch import nn
from torch.nn.init import normal_

from recbole.model.abstract_recommender import GeneralRecommender
from recbole.model.layers import MLPLayers
from recbole.utils import InputType


class PairScorer(GeneralRecommender):
    input_type = InputType.POINTWISE

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        width = int(config["embedding_size"])
        self.users = nn.Embedding(dataset.num(self.USER_ID), width)
        self.items = nn.ModuleList([nn.Embedding(dataset.item_num, width) for part in range(2)])
        self.layers = MLPLayers([3 * width, 16, 8], config["dropout_prob"])
        self.output = nn.Linear(8, 1)
        self.sigmoid = nn.Sigmoid()
        self.loss = nn.BCEWithLogitsLoss()
        normal_(self.users.weight, std=0.1)
        for table in self.items:
            nn.init.uniform_(table.weight, -0.1, 0.1)

    def forward(self, user, item):
        rows = [self.users(user)] + [table(item) for table in self.items]
        return self.output(self.layers(torch.cat(rows, -1))).squeeze(-1)

    def calculate_loss(self, interaction):
        logits = self.forward(interaction[self.USER_ID], interaction[self.ITEM_ID])
        return self.loss(logits, interaction[self.LABEL])

    def predict(self, interaction):
        return self.sigmoid(self(interaction[self.USER_ID], interaction[self.ITEM_ID]))
"""

CLICKS = """import torch
from torch import nn

from recbole.model.abstract_recommender import ContextRecommender
from recbole.model.layers import MLPLayers


class ShallowDeep(ContextRecommender):
    def __init__(self, config, dataset):
        super(ShallowDeep, self).__init__(config, dataset)
        self.mlp = MLPLayers([self.num_feature_field * self.embedding_size, 16, 1])
        self.sigmoid = nn.Sigmoid()
        self.loss = nn.BCEWithLogitsLoss()

    def forward(self, interaction):
        vectors = self.concat_embed_input_fields(interaction)
        deep = self.mlp(vectors.flatten(1))
        return (deep + self.first_order_linear(interaction)).squeeze(-1)

    def calculate_loss(self, interaction):
        return self.loss(self.forward(interaction), interaction[self.LABEL])

    def predict(self, interaction):
        return self.sigmoid(self.forward(interaction))
"""
