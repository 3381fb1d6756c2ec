"""CUDA kernels of FlashInfer and SGLang in one small library, and their record. See `gpu_kernels.build`."""
