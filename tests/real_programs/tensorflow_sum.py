"""TensorFlow's MultiWorkerMirroredStrategy."""
import os

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = strategy.cluster_resolver.task_id


@tf.function
def step():
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(task + 1.0))


total = float(strategy.experimental_local_results(strategy.run(step))[0])
os.write(1, f"rank {task} of {strategy.num_replicas_in_sync}: sum {total}\n".encode())
