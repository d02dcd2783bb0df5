"""MindSpore's tutorial on data-parallel training, on CPUs: one linear layer on MNIST's digits.

The program does not depend on the launcher: init() reads the variables that msrun sets. DATA_PATH names a folder with
MNIST's two training files.
"""

import os

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops
from mindspore.communication import get_group_size, get_rank, init

ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
init()
ms.set_seed(1)


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.fc = nn.Dense(28 * 28, 10, weight_init="normal", bias_init="zeros")
        self.relu = nn.ReLU()

    def construct(self, x):
        return self.relu(self.fc(self.flatten(x)))


def create_dataset(batch_size):
    dataset = ds.MnistDataset(os.getenv("DATA_PATH"), num_shards=get_group_size(), shard_id=get_rank())
    image_transforms = [
        ds.vision.Rescale(1.0 / 255.0, 0),
        ds.vision.Normalize(mean=(0.1307,), std=(0.3081,)),
        ds.vision.HWC2CHW(),
    ]
    dataset = dataset.map(image_transforms, "image")
    dataset = dataset.map(ds.transforms.TypeCast(ms.int32), "label")
    return dataset.batch(batch_size)


net = Network()
loss_fn = nn.CrossEntropyLoss()
optimizer = nn.SGD(net.trainable_params(), 1e-2)


def forward_fn(data, label):
    logits = net(data)
    return loss_fn(logits, label), logits


grad_fn = ops.value_and_grad(forward_fn, None, net.trainable_params(), has_aux=True)
grad_reducer = nn.DistributedGradReducer(optimizer.parameters)

for epoch in range(1):
    for step, (image, label) in enumerate(create_dataset(32)):
        (loss, _), grads = grad_fn(image, label)
        optimizer(grad_reducer(grads))
        if step % 300 == 0:
            print(f"rank {get_rank()} of {get_group_size()}: epoch: {epoch}, step: {step}, loss is {loss}", flush=True)
