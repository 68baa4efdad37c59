"""Kernels: the only room that calls the native core (csrc/, shoal._core) or Triton.

core.py     the native core, where it was built
machine.py  whether there is a kernel: for these tensors, on this machine
gpu/        Triton kernels; imported only where Triton is installed
common/     what all forms of an operation agree on: hashes, masks, rules of rows
others      one operation or one family of them each: what callers need to know stands in the
            signature, and the plain torch or numpy form stands beside the kernel

A kernel stays if it serves every run, a whole family or three models. This room imports no other.
"""
