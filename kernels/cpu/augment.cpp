#include "augment.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "noise.h"
#include "passes.h"

namespace gpupipe {
namespace {

constexpr size_t kKeep = size_t{64} << 20;  // bytes that a thread keeps between images

// What each level of each channel becomes.
struct Table {
  uint8_t of[3][256];

  template <typename Function>
  static Table same(const Function& becomes) {
    Table table;
    for (int value = 0; value < 256; ++value) table.of[0][value] = static_cast<uint8_t>(becomes(value));
    std::memcpy(table.of[1], table.of[0], 256);
    std::memcpy(table.of[2], table.of[0], 256);
    return table;
  }

  void apply(uint8_t* image, size_t pixels) const {
    size_t p = 0;
    for (; p + 4 <= pixels; p += 4) {  // which go to memory together
      uint8_t* at = image + p * 3;
      __builtin_prefetch(at + kAhead);
      uint8_t become[12];
      for (size_t i = 0; i < 12; ++i) become[i] = of[i % 3][at[i]];
      std::memcpy(at, become, 12);
    }
    for (; p < pixels; ++p) {
      for (size_t c = 0; c < 3; ++c) image[p * 3 + c] = of[c][image[p * 3 + c]];
    }
  }
};

// Cut to 0 to 255, then truncated; 0 for no number.
int level(float exact) { return exact > 0.0f ? static_cast<int>(std::min(exact, 255.0f)) : 0; }

uint8_t nearest_level(float exact) { return static_cast<uint8_t>(level(std::nearbyint(exact))); }

Table brightness(float factor) {
  return Table::same([&](int value) { return level(static_cast<float>(value) * factor); });
}

Table contrast(float factor, float mean) {
  const float part = mean * (1.0f - factor);
  return Table::same([&](int value) { return level(static_cast<float>(value) * factor + part); });
}

// Calls change(at, count) for 64 bytes after 64 bytes.
template <typename Function>
void each_line(uint8_t* image, size_t bytes, const Function& change) {
  constexpr size_t kLine = 64;
  size_t at = 0;
  for (; at + kLine <= bytes; at += kLine) {
    __builtin_prefetch(image + at + kAhead);
    change(image + at, kLine);
  }
  change(image + at, bytes - at);
}

// Bits kept, then turned round.
void change_bits(uint8_t* image, size_t bytes, uint8_t keep, uint8_t turn) {
  each_line(image, bytes, [=](uint8_t* at, size_t count) {
    for (size_t i = 0; i < count; ++i) at[i] = static_cast<uint8_t>((at[i] & keep) ^ turn);
  });
}

void solarize(uint8_t* image, size_t bytes, float from) {
  if (from > 255.0f) return;
  const uint8_t first = static_cast<uint8_t>(level(std::ceil(from)));  // of one byte, so that 16 are compared at once
  each_line(image, bytes, [=](uint8_t* at, size_t count) {
    for (size_t i = 0; i < count; ++i) at[i] ^= static_cast<uint8_t>(at[i] >= first ? 0xFF : 0);
  });
}

// Whether an operation turns the image over, top to bottom, and no more.
bool turns_over(const Step& step, int height) {
  const float turned[6] = {1.0f, 0.0f, 0.0f, 0.0f, -1.0f, static_cast<float>(height - 1)};
  return step.op == Op::affine_nearest && std::equal(turned, turned + 6, step.values);
}

// Where it lies: 19 us for 224 x 224 of a batch, where a copy and back take 26.
void turn_over(uint8_t* image, int height, size_t stride) {
  for (int y = 0; y < height / 2; ++y) {
    uint8_t* other = image + stride * (height - 1 - y);
    each_line(image + stride * y, stride, [&](uint8_t* at, size_t count) {
      __builtin_prefetch(other - stride);
      std::swap_ranges(at, at + count, other);
      other += count;
    });
  }
}

Table solarize_add(float more) {
  return Table::same([&](int value) { return value < 128 ? level(static_cast<float>(value) + more) : value; });
}

Table gamma(float power) {
  return Table::same([&](int value) {
    if (value == 0) return 0;
    const float x = power * logarithm(static_cast<float>(value) / 255.0f);
    const float whole = std::floor(x * 1.44269504f + 0.5f), rest = x - whole * 0.693147181f;
    float raised = 1 / 720.0f;
    for (const float factor : {1 / 120.0f, 1 / 24.0f, 1 / 6.0f, 1 / 2.0f, 1.0f, 1.0f}) raised = raised * rest + factor;
    const uint32_t exponent = static_cast<uint32_t>(static_cast<int32_t>(std::max(whole, -127.0f)) + 127);
    return level(std::min(raised * float_of(exponent << 23), 1.0f) * 255.999f);
  });
}

Table autocontrast(const uint8_t low[3], const uint8_t high[3]) {
  Table table;
  for (int c = 0; c < 3; ++c) {
    const float first = low[c] == high[c] ? 0.0f : low[c];
    const float step = low[c] == high[c] ? 1.0f : static_cast<float>(high[c] - low[c]) * (1.0f / 255.0f);
    for (int value = 0; value < 256; ++value) {
      table.of[c][value] = static_cast<uint8_t>(level((static_cast<float>(value) - first) / step));
    }
  }
  return table;
}

// Pillow's way (ImageOps.equalize).
Table equalize(const uint8_t* image, size_t pixels) {
  uint32_t counts[4][3][256] = {};  // four in turn: pixels of one level do not wait for one another
  size_t p = 0;
  for (; p + 4 <= pixels; p += 4) {
    for (size_t i = 0; i < 12; ++i) ++counts[i / 3][i % 3][image[p * 3 + i]];
  }
  for (; p < pixels; ++p) {
    for (size_t c = 0; c < 3; ++c) ++counts[0][c][image[p * 3 + c]];
  }
  Table table;
  for (int c = 0; c < 3; ++c) {
    uint32_t histogram[256], last = 0;
    for (int value = 0; value < 256; ++value) {
      histogram[value] = counts[0][c][value] + counts[1][c][value] + counts[2][c][value] + counts[3][c][value];
      if (histogram[value] != 0) last = histogram[value];
    }
    const uint32_t step = (static_cast<uint32_t>(pixels) - last) / 255;
    uint32_t below = 0;
    for (int value = 0; value < 256; ++value) {
      const uint32_t exact = step == 0 ? static_cast<uint32_t>(value) : (below + step / 2) / step;
      table.of[c][value] = static_cast<uint8_t>(std::min(exact, 255u));
      below += histogram[value];
    }
  }
  return table;
}

// Cut to 16 bits.
uint32_t half(float exact) { return exact > 0.0f ? static_cast<uint32_t>(std::min(exact, 65535.0f)) : 0u; }

// Of two numbers of 16 bits, the lower one first.
uint32_t key_word(const float* halves) { return half(halves[0]) | half(halves[1]) << 16; }

void fill_holes(const Step& step, const uint8_t color[3], uint8_t* image, int height, int width) {
  const uint32_t count = std::min(half(step.values[0]), static_cast<uint32_t>(step.count - 1) / 4);
  for (uint32_t n = 0; n < count; ++n) {
    const float* hole = step.values + 1 + n * 4;
    const int top = static_cast<int>(half(hole[0])), left = static_cast<int>(half(hole[1]));
    const int bottom = std::min(top + static_cast<int>(half(hole[2])), height);
    const int right = std::min(left + static_cast<int>(half(hole[3])), width);
    for (int y = top; y < bottom; ++y) {
      uint8_t* row = image + (static_cast<size_t>(y) * width) * 3;
      for (int x = left; x < right; ++x) std::memcpy(row + x * 3, color, 3);
    }
  }
}

// Beyond the border, mirrored about the outermost pixel, as often as it takes.
int reflected(int64_t at, int size) {
  const int64_t period = std::max(2 * (static_cast<int64_t>(size) - 1), int64_t{1});
  const int64_t folded = (at % period + period) % period;
  return static_cast<int>(folded < size ? folded : period - folded);
}

}  // namespace

uint8_t* Augmenter::copied(const uint8_t* image, size_t bytes) {
  copy_.resize(bytes + 2 * kCopySlack);
  std::memcpy(copy_.data() + kCopySlack, image, bytes);
  return copy_.data() + kCopySlack;
}

template <int kChannels, typename Level>
void Augmenter::blur(const AugmentLoops& loops, const float* weights, int count, Level* image, int height, int width) {
  int taps = count - 1;
  while (taps > 0 && weights[taps] == 0.0f) --taps;
  const size_t numbers = static_cast<size_t>(width) * kChannels, border = static_cast<size_t>(taps) * kChannels;
  const size_t stride = (numbers + kBlurBlock - 1) / kBlurBlock * kBlurBlock;
  exact_.resize(stride * height);
  padded_.resize(stride + border * 2);
  float* middle = padded_.data() + border;
  for (int y = 0; y < height; ++y) {
    const Level* row = image + numbers * y;
    for (size_t i = 0; i < numbers; ++i) middle[i] = row[i];
    for (ptrdiff_t d = 1; d <= taps; ++d) {
      const float* before = middle + reflected(-d, width) * kChannels;
      const float* after = middle + reflected(width - 1 + d, width) * kChannels;
      std::copy(before, before + kChannels, middle - d * kChannels);
      std::copy(after, after + kChannels, middle + numbers + (d - 1) * kChannels);
    }
    loops.blur_row(middle, stride, weights, taps, kChannels, exact_.data() + stride * y);
  }
  rows_.resize(static_cast<size_t>(height) + static_cast<size_t>(taps) * 2);
  for (int i = 0; i < height + taps * 2; ++i) {
    rows_[i] = exact_.data() + stride * reflected(static_cast<int64_t>(i) - taps, height);
  }
  // Strips, whose rows stay in the cache.
  constexpr size_t kStrip = 8 * kBlurBlock;
  for (size_t at = 0; at < numbers; at += kStrip) {
    const size_t end = std::min(numbers, at + kStrip);
    for (int y = 0; y < height; ++y) {
      const float* const* rows = rows_.data() + taps + y;
      if constexpr (std::is_same_v<Level, float>) {
        loops.sum_columns(rows, at, end, weights, taps, image + numbers * y);
      } else {
        loops.blur_columns(rows, at, end, weights, taps, image + numbers * y);
      }
    }
  }
}

void Augmenter::mix(const AugmentLoops& loops, const Step& step, uint8_t* image, size_t bytes) {
  const bool first = step.op == Op::mix_begin || !mixing_;
  total_.resize(bytes);
  loops.add_share(image, bytes, step.values[0], first, total_.data());
  if (first) {
    kept_.resize(bytes);
    step.op == Op::mix_begin ? std::copy(image, image + bytes, kept_.data()) : std::fill_n(kept_.data(), bytes, uint8_t{0});
    mixing_ = true;
  }
  if (step.op == Op::mix_add) std::memcpy(image, kept_.data(), bytes);
  if (step.op == Op::mix_end) {
    for (size_t i = 0; i < bytes; ++i) image[i] = static_cast<uint8_t>(level(total_[i]));
  }
}

Mapping Augmenter::displaced(const AugmentLoops& loops, const Step& step, int height, int width) {
  constexpr int kWeights = 6;  // ELASTIC of kernels/operations.py
  const size_t pixels = static_cast<size_t>(height) * width;
  const uint32_t key[2] = {key_word(step.values + 2), key_word(step.values + 4)};
  planes_.resize(pixels * 2);
  loops.uniform_planes(key, pixels, planes_.data());
  for (float* plane : {planes_.data(), planes_.data() + pixels}) {
    blur<1>(loops, step.values + kWeights, step.count - kWeights, plane, height, width);
  }
  return {step.values, false, planes_.data(), pixels, static_cast<size_t>(width)};
}

void Augmenter::apply(const AugmentLoops& loops, const Step& step, const float* fill, uint8_t* image, int height,
                      int width) {
  const size_t pixels = static_cast<size_t>(height) * width, bytes = pixels * 3;
  const float value = step.values[0];
  if (turns_over(step, height)) return turn_over(image, height, bytes / height);
  Mapping map = {step.values, step.op == Op::perspective_nearest || step.op == Op::perspective_bilinear};
  if (step.op == Op::elastic_nearest || step.op == Op::elastic_bilinear) map = displaced(loops, step, height, width);
  switch (step.op) {
    case Op::identity: return;
    case Op::affine_nearest:
    case Op::perspective_nearest:
    case Op::elastic_nearest:
    case Op::affine_bicubic: {
      const auto moved = step.op == Op::affine_bicubic ? loops.bicubic : loops.nearest;
      uint8_t* source = copied(image, bytes);
      for (int c = 0; c < 3; ++c) source[bytes + c] = fill == nullptr ? 0 : nearest_level(fill[c]);
      return moved(source, image, height, width, map, static_cast<int32_t>(bytes));
    }
    case Op::affine_bilinear:
    case Op::perspective_bilinear:
    case Op::elastic_bilinear:
      return loops.bilinear(copied(image, bytes), image, height, width, map, fill);
    case Op::brightness: return brightness(value).apply(image, pixels);
    case Op::contrast: {
      const float mean = static_cast<float>(loops.gray_sum(image, pixels)) / static_cast<float>(pixels);
      return contrast(value, mean).apply(image, pixels);
    }
    case Op::saturation: return loops.saturation(image, pixels, value);
    case Op::hue: return loops.hue(image, pixels, value);
    case Op::sharpness:
      if (height <= 2 || width <= 2) return;
      return loops.sharpness(copied(image, bytes), image, height, width, value);
    case Op::posterize:
      return change_bits(image, bytes, static_cast<uint8_t>(0xFF00 >> std::min(level(value), 8)), 0);
    case Op::solarize: return solarize(image, bytes, value);
    case Op::autocontrast: {
      uint8_t low[3], high[3];
      loops.extremes(image, pixels, low, high);
      return autocontrast(low, high).apply(image, pixels);
    }
    case Op::equalize: return equalize(image, pixels).apply(image, pixels);
    case Op::invert: return change_bits(image, bytes, 0xFF, 0xFF);
    case Op::grayscale: return loops.grayscale(image, pixels);
    case Op::gaussian_blur: return blur<3>(loops, step.values, step.count, image, height, width);
    case Op::channels: return loops.channels(image, pixels, std::min(level(value), 5));
    case Op::noise: {
      const uint32_t key[2] = {key_word(step.values + 2), key_word(step.values + 4)};
      return loops.noise(image, pixels, value, step.values[1], key);
    }
    case Op::solarize_add: return solarize_add(value).apply(image, pixels);
    case Op::gamma: return gamma(value).apply(image, pixels);
    case Op::hsv: return loops.hsv(image, pixels, value, step.values[1], step.values[2]);
    case Op::mix_begin:
    case Op::mix_add:
    case Op::mix_end: return mix(loops, step, image, bytes);
    case Op::holes: {
      uint8_t color[3] = {};
      for (int c = 0; c < 3 && fill != nullptr; ++c) color[c] = nearest_level(fill[c]);
      return fill_holes(step, color, image, height, width);
    }
  }
}

void Augmenter::trim() {
  size_t kept = copy_.capacity() + kept_.capacity();
  for (const auto* numbers : {&exact_, &padded_, &planes_, &total_}) kept += numbers->capacity() * sizeof(float);
  if (kept <= kKeep) return;
  for (auto* bytes : {&copy_, &kept_}) std::vector<uint8_t>().swap(*bytes);
  for (auto* numbers : {&exact_, &padded_, &planes_, &total_}) std::vector<float>().swap(*numbers);
}

const AugmentLoops* find_augment(const char* name) {
  const Passes* passes = find_passes(name);
  if (passes == nullptr) return nullptr;
  if (passes == avx512_passes()) return avx512_augment();
  const AugmentLoops* fast = passes == &kPortablePasses ? nullptr : avx2_augment();
  return fast != nullptr ? fast : &portable_augment();
}

}  // namespace gpupipe
