#include "finish.h"
#include "noise.h"
#include "passes.h"

namespace gpupipe {
namespace {

template <typename T>
void look_up(const FinishSpec& spec, const uint8_t* in, size_t begin, size_t pixels, T* out) {
  const T* table = static_cast<const T*>(spec.table);
  const size_t step = spec.channels_last ? 3 : 1, plane = spec.channels_last ? 1 : plane_of(spec, pixels);
  for (size_t p = begin; p < pixels; ++p) {
    for (size_t c = 0; c < 3; ++c) out[p * step + c * plane] = table[c * 256 + in[p * 3 + c]];
  }
}

void rearrange(const FinishSpec& spec, const uint8_t* in, size_t begin, size_t pixels, uint8_t* out) {
  const size_t step = spec.channels_last ? 3 : 1, plane = spec.channels_last ? 1 : plane_of(spec, pixels);
  for (size_t p = begin; p < pixels; ++p) {
    for (size_t c = 0; c < 3; ++c) out[p * step + c * plane] = in[p * 3 + c];
  }
}

// Rounded to nearest, ties to even; not for NaN.
uint16_t to_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Likewise. Rounding may carry into the exponent, and from there to infinity.
uint16_t to_float16(float value) {
  const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
  const uint32_t smallest = 0x38800000, overflow = 0x47800000;  // 2^-14, the smallest with all its bits, and 2^16
  if (size >= overflow) return static_cast<uint16_t>(sign | 0x7C00);
  if (size >= smallest) return static_cast<uint16_t>(sign | (size + 0xFFF + (size >> 13 & 1) - 0x38000000) >> 13);
  // The sum's last bit is worth 2^-24, that of the numbers below.
  return static_cast<uint16_t>(sign | (bits_of(float_of(size) + 0.5f) - bits_of(0.5f)));
}

float to_float32(float value) { return value; }

template <typename T, T (*round)(float)>
void mix(const FinishSpec& spec, float weight, const uint8_t* own, const uint8_t* other, size_t begin, size_t pixels,
         void* out) {
  const size_t step = spec.channels_last ? 3 : 1, plane = spec.channels_last ? 1 : plane_of(spec, pixels);
  const float rest = 1 - weight;
  for (size_t p = begin; p < pixels; ++p) {
    for (size_t c = 0; c < 3; ++c) {
      const float* table = spec.exact + c * 256;
      static_cast<T*>(out)[p * step + c * plane] = round(weight * table[own[p * 3 + c]] + rest * table[other[p * 3 + c]]);
    }
  }
}

void finish_portable(const FinishSpec& spec, const uint8_t* in, size_t pixels, void* out) {
  finish_rest(spec, in, 0, pixels, out);
}

void mixed_portable(const FinishSpec& spec, float weight, const uint8_t* own, const uint8_t* other, size_t pixels,
                    void* out) {
  mixed_rest(spec, weight, own, other, 0, pixels, out);
}

void store_portable(Dtype dtype, const float* numbers, size_t count, void* out) {
  store_rest(dtype, numbers, 0, count, out);
}

void noise_portable(const uint32_t key[2], uint32_t first, float* out) { noise_run(key, first, out); }

}  // namespace

const FinishKernels kPortableFinish = {finish_portable, mixed_portable, store_portable, noise_portable};

void finish_rest(const FinishSpec& spec, const uint8_t* in, size_t begin, size_t pixels, void* out) {
  switch (spec.dtype) {
    case Dtype::float32: return look_up(spec, in, begin, pixels, static_cast<uint32_t*>(out));
    case Dtype::float16:
    case Dtype::bfloat16: return look_up(spec, in, begin, pixels, static_cast<uint16_t*>(out));
    case Dtype::uint8: return rearrange(spec, in, begin, pixels, static_cast<uint8_t*>(out));
  }
}

void store_rest(Dtype dtype, const float* numbers, size_t begin, size_t count, void* out) {
  switch (dtype) {
    case Dtype::float32:
      for (size_t i = begin; i < count; ++i) static_cast<float*>(out)[i] = numbers[i];
      return;
    case Dtype::float16:
      for (size_t i = begin; i < count; ++i) static_cast<uint16_t*>(out)[i] = to_float16(numbers[i]);
      return;
    case Dtype::bfloat16:
      for (size_t i = begin; i < count; ++i) static_cast<uint16_t*>(out)[i] = to_bfloat16(numbers[i]);
      return;
    case Dtype::uint8: return;
  }
}

void mixed_rest(const FinishSpec& spec, float weight, const uint8_t* own, const uint8_t* other, size_t begin,
                size_t pixels, void* out) {
  switch (spec.dtype) {
    case Dtype::float32: return mix<float, to_float32>(spec, weight, own, other, begin, pixels, out);
    case Dtype::float16: return mix<uint16_t, to_float16>(spec, weight, own, other, begin, pixels, out);
    case Dtype::bfloat16: return mix<uint16_t, to_bfloat16>(spec, weight, own, other, begin, pixels, out);
    case Dtype::uint8: return;
  }
}

const FinishKernels* find_finish(const char* name) {
  const Passes* passes = find_passes(name);
  if (passes == nullptr) return nullptr;
  const FinishKernels* fast = passes == &kPortablePasses ? nullptr : avx2_finish();
  return fast != nullptr ? fast : &kPortableFinish;
}

}  // namespace gpupipe
