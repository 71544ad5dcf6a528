"""Answers a second of GRPO by trl on the CPU, its own generation: what `rl_bench samples` does with heddle.

The same sizes of the model (GPT-2 of 10 million floats, random weights), 8 prompts with 8 answers of 48 tokens each
for a step, one thread, one step of AdamW on all 64. Packages: torch, transformers, trl 1.16.
run: python rl_samples_trl.py [steps]
"""

import statistics
import sys
import tempfile
import time

import datasets
import torch
import transformers
import trl
from tokenizers import Tokenizer, models, pre_tokenizers

torch.set_num_threads(1)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 5
words = 2048
tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", eos_token="w1")
torch.manual_seed(1)
model = transformers.GPT2LMHeadModel(
    transformers.GPT2Config(vocab_size=words, n_positions=64, n_embd=384, n_layer=5, n_head=6, resid_pdrop=0,
                            embd_pdrop=0, attn_pdrop=0, bos_token_id=1, eos_token_id=1, pad_token_id=0))
stamps = []


def reward(completions, completion_ids, **_):
    assert all(len(ids) == 48 for ids in completion_ids), [len(ids) for ids in completion_ids]
    return [sum(t % 2 == 0 for t in ids) / len(ids) for ids in completion_ids]


class Stamps(transformers.TrainerCallback):
    def on_step_end(self, *_, **__):
        stamps.append((time.perf_counter(), time.process_time()))


with tempfile.TemporaryDirectory() as folder:
    config = trl.GRPOConfig(
        output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, per_device_train_batch_size=64,
        num_generations=8, max_completion_length=48, generation_kwargs={"min_new_tokens": 48}, beta=0.0,
        learning_rate=1e-6, max_steps=steps + 1, save_strategy="no", report_to=[], disable_tqdm=True, logging_steps=1000)
    prompts = [{"prompt": f"w0 w{2 + i} w7 w8"} for i in range(8 * (steps + 1))]
    trainer = trl.GRPOTrainer(model=model, reward_funcs=reward, args=config, processing_class=fast,
                              train_dataset=datasets.Dataset.from_list(prompts), callbacks=[Stamps()])
    trainer.train()
wall = [b[0] - a[0] for a, b in zip(stamps, stamps[1:])]
cpu = [b[1] - a[1] for a, b in zip(stamps, stamps[1:])]
took = statistics.median(wall)
print(f"trl {trl.__version__}, torch {torch.__version__}: 64 answers in {took:.3f} s: {64 / took:.2f} answers/s; "
      f"processor time {statistics.median(cpu):.3f} s a step; {sum(p.numel() for p in model.parameters())} floats")
