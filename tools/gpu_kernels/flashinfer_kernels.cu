// FlashInfer's sampling kernels behind C functions: raw pointers, sizes, a stream; each returns a cudaError_t.
//
// Nothing of FlashInfer is copied here: its public headers are included, and every function calls the launcher that
// csrc/sampling.cu or csrc/renorm.cu of the same release calls, with the same template arguments. Tensors are
// contiguous, probabilities and logits float32, ids and top-k int32, seeds and offsets uint64. A parameter comes per
// row as a tensor, or as one number beside a null pointer.
#include <flashinfer/air_top_p.cuh>
#include <flashinfer/sampling.cuh>

namespace fi = flashinfer::sampling;

// Where a row's random numbers begin: curand_init(seed, row of the output, offset).
struct Noise {
  uint64_t* seeds;  // [1] or [num_outputs], or null
  uint64_t* offsets;
  uint32_t seed_stride, offset_stride;  // 0 broadcasts one
  uint64_t seed, offset;
};

#define NOISE noise->seeds, noise->seed, noise->offsets, noise->offset, stream, noise->seed_stride, noise->offset_stride

extern "C" {

int fd_softmax(float* logits, float* probs, float* temperatures, float temperature, uint32_t rows, uint32_t vocab,
               void* workspace, uint64_t workspace_bytes, int enable_pdl, cudaStream_t stream) {
  return fi::OnlineSoftmax<float>(logits, probs, rows, vocab, temperatures, temperature, workspace, workspace_bytes,
                                  enable_pdl, stream);
}

int fd_sampling_from_logits(float* logits, int* output, int* indices, uint32_t outputs, uint32_t vocab, int deterministic,
                            Noise* noise, cudaStream_t stream) {
  return fi::SamplingFromLogits<float, int>(logits, output, indices, outputs, vocab, deterministic, NOISE);
}

int fd_sampling_from_probs(float* probs, int* output, bool* valid, int* indices, uint32_t outputs, uint32_t vocab,
                           int deterministic, Noise* noise, cudaStream_t stream) {
  return fi::SamplingFromProb<float, int>(probs, output, valid, indices, outputs, vocab, deterministic, NOISE);
}

int fd_top_k_sampling(float* probs, int* output, bool* valid, int* indices, int* top_ks, int top_k, uint32_t outputs,
                      uint32_t vocab, int deterministic, Noise* noise, cudaStream_t stream) {
  // The launcher wants float*, and its kernel reads integers there; csrc/sampling.cu casts likewise.
  auto as_float = reinterpret_cast<float*>(top_ks);
  return fi::TopKSamplingFromProb<float, int>(probs, output, valid, indices, as_float, outputs, top_k, vocab, deterministic,
                                              NOISE);
}

int fd_top_p_sampling(float* probs, int* output, bool* valid, int* indices, float* top_ps, float top_p, uint32_t outputs,
                      uint32_t vocab, int deterministic, Noise* noise, cudaStream_t stream) {
  return fi::TopPSamplingFromProb<float, int>(probs, output, valid, indices, top_ps, outputs, top_p, vocab, deterministic,
                                              NOISE);
}

int fd_min_p_sampling(float* probs, int* output, bool* valid, int* indices, float* min_ps, float min_p, uint32_t outputs,
                      uint32_t vocab, int deterministic, Noise* noise, cudaStream_t stream) {
  return fi::MinPSamplingFromProb<float, int>(probs, min_ps, output, valid, indices, outputs, min_p, vocab, deterministic,
                                              NOISE);
}

int fd_top_k_top_p_sampling(float* probs, int* output, bool* valid, int* indices, int* top_ks, int top_k, float* top_ps,
                            float top_p, uint32_t outputs, uint32_t vocab, int deterministic, Noise* noise,
                            cudaStream_t stream) {
  return fi::TopKTopPSamplingFromProb<float, int>(probs, top_ks, top_ps, output, valid, indices, outputs, top_k, top_p,
                                                  vocab, deterministic, NOISE);
}

int fd_top_k_renorm(float* probs, float* output, int* top_ks, int top_k, uint32_t rows, uint32_t vocab, void* row_states,
                    int deterministic, cudaStream_t stream) {
  auto states = static_cast<fi::RadixRowState*>(row_states);
  return fi::RadixTopKRenormProbMultiCTA<float, int>(probs, output, top_ks, rows, top_k, vocab, states, deterministic,
                                                     stream);
}

int fd_top_k_mask_logits(float* logits, float* output, int* top_ks, int top_k, uint32_t rows, uint32_t vocab,
                         void* row_states, cudaStream_t stream) {
  auto states = static_cast<fi::RadixRowState*>(row_states);
  return fi::RadixTopKMaskLogitsMultiCTA<float, int>(logits, output, top_ks, rows, top_k, vocab, states, stream);
}

int fd_top_p_renorm(float* probs, float* output, float* top_ps, float top_p, uint32_t rows, uint32_t vocab,
                    void* workspace, int deterministic, cudaStream_t stream) {
  if (vocab < fi::air_top_p::NUM_BUCKETS) {  // as csrc/renorm.cu decides
    return fi::TopPRenormProb<float>(probs, output, top_ps, rows, top_p, vocab, stream);
  }
  auto launch = deterministic ? fi::air_top_p::AirTopPRenormProb<true, float> : fi::air_top_p::AirTopPRenormProb<false, float>;
  return launch(probs, output, top_ps, rows, top_p, vocab, workspace, stream);
}

int fd_chain_speculative_sampling(float* draft_probs, int* draft_ids, float* target_probs, int* output, int* accepted,
                                  int* emitted, uint32_t rows, uint32_t drafts, uint32_t vocab, int deterministic,
                                  Noise* noise, cudaStream_t stream) {
  return fi::ChainSpeculativeSampling<float, int>(draft_probs, draft_ids, target_probs, output, accepted, emitted, rows,
                                                  drafts, vocab, deterministic, NOISE);
}

const char* fd_error(int status) { return cudaGetErrorString(static_cast<cudaError_t>(status)); }
}
