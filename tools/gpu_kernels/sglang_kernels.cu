// SGLang's tree speculative sampling behind a C function; its header includes FlashInfer's.
//
// Launched as kernels/jit/csrc/speculative/sampling.cuh of the same release launches it: a block of 1,024 threads per
// request, the vocabulary read in vectors of gcd(4, vocab_size) numbers.
#include <sgl_kernel/speculative/sampling.cuh>

#include <algorithm>
#include <numeric>

namespace fi = flashinfer::sampling;

struct Tree {
  int* predicts;           // [requests * nodes] out
  int* accept_index;       // [requests, depth] out
  int* accept_token_num;   // [requests] out
  int64_t* candidates;     // [requests, nodes]; node 0 is the token before the drafts
  int64_t* index;          // [requests, nodes] slot of each node in `predicts`
  int64_t* next_token;     // [requests, nodes] first child, -1: none
  int64_t* next_sibling;   // [requests, nodes] -1: none
  float* uniforms;         // [requests, nodes]
  float* final_uniforms;   // [requests]
  float* target_probs;     // [requests, nodes, vocab]
  float* draft_probs;      // [requests, nodes, vocab]; written
  uint32_t requests, depth, nodes, vocab;
  float threshold_single, threshold_acc;
};

template <uint32_t VEC_SIZE>
static cudaError_t launch(const Tree& t, cudaStream_t stream) {
  constexpr uint32_t threads = 1024;
  const size_t shared = sizeof(fi::SamplingTempStorage<threads, fi::SCAN_ALGO, fi::REDUCE_ALGO>);
  auto kernel =
      sglang::speculative_sampling::TreeSpeculativeSamplingTargetOnly<threads, fi::SCAN_ALGO, fi::REDUCE_ALGO, VEC_SIZE,
                                                                      /*deterministic=*/true, float, int32_t, int64_t>;
  kernel<<<t.requests, threads, shared, stream>>>(
      t.predicts, t.accept_index, t.accept_token_num, t.candidates, t.index, t.next_token, t.next_sibling, t.uniforms,
      t.final_uniforms, t.target_probs, t.draft_probs, t.requests, t.depth, t.nodes, t.vocab, t.threshold_single,
      std::max(t.threshold_acc, 1e-9f));
  return cudaGetLastError();
}

extern "C" int fd_tree_speculative_sampling(const Tree* tree, cudaStream_t stream) {
  switch (std::gcd(4u, tree->vocab)) {
    case 4:
      return launch<4>(*tree, stream);
    case 2:
      return launch<2>(*tree, stream);
    default:
      return launch<1>(*tree, stream);
  }
}
