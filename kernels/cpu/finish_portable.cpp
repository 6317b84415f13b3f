#include <cstring>

#include "finish.h"
#include "passes.h"

namespace gpupipe {
namespace {

template <typename T>
void look_up(const FinishSpec& spec, const uint8_t* in, size_t begin, size_t pixels, T* out) {
  const T* table = static_cast<const T*>(spec.table);
  const size_t step = spec.channels_last ? 3 : 1, plane = spec.channels_last ? 1 : pixels;
  for (size_t p = begin; p < pixels; ++p) {
    for (size_t c = 0; c < 3; ++c) out[p * step + c * plane] = table[c * 256 + in[p * 3 + c]];
  }
}

void rearrange(const FinishSpec& spec, const uint8_t* in, size_t begin, size_t pixels, uint8_t* out) {
  const size_t step = spec.channels_last ? 3 : 1, plane = spec.channels_last ? 1 : pixels;
  for (size_t p = begin; p < pixels; ++p) {
    for (size_t c = 0; c < 3; ++c) out[p * step + c * plane] = in[p * 3 + c];
  }
}

}  // namespace

void finish_rest(const FinishSpec& spec, const uint8_t* in, size_t begin, size_t pixels, void* out) {
  switch (spec.dtype) {
    case Dtype::float32: return look_up(spec, in, begin, pixels, static_cast<uint32_t*>(out));
    case Dtype::float16:
    case Dtype::bfloat16: return look_up(spec, in, begin, pixels, static_cast<uint16_t*>(out));
    case Dtype::uint8: return rearrange(spec, in, begin, pixels, static_cast<uint8_t*>(out));
  }
}

void finish_portable(const FinishSpec& spec, const uint8_t* in, size_t pixels, void* out) {
  finish_rest(spec, in, 0, pixels, out);
}

FinishImage find_finish(const char* name) {
  const Passes* passes = find_passes(name);
  if (passes == nullptr) return nullptr;
  if (passes == &kPortablePasses) return finish_portable;
  const FinishImage fast = avx2_finish();
  return fast != nullptr ? fast : finish_portable;
}

}  // namespace gpupipe
