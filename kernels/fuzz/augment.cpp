// Programs of any operations with any values on images of any small size, for the sanitizers: augment.cpp SECONDS SEED.
// Every variant must give the same levels, in place and elsewhere, on one thread and on several.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "../cpu/api.h"
#include "common.h"

namespace {

// Usual values, values of any size, and any finite bits.
float any_value() {
  const float share = static_cast<float>(draw(2001)) / 1000.0f - 1.0f;
  switch (draw(4)) {
    case 0: return share;
    case 1: return share * 300.0f;
    case 2: return static_cast<float>(draw(600)) / 2.0f - 150.0f;
    default: {
      const uint32_t bits = draw() << 1 ^ draw(2);
      float value;
      memcpy(&value, &bits, 4);
      return value - value == 0.0f ? value : 3e38f;
    }
  }
}

// What kernels/operations.py allows.
float first_value(int32_t op, float value) {
  const float positive = value < 0 ? -value : value;
  switch (op) {
    case 3: case 4: case 5: case 7: return positive < 1e30f ? positive : 1e30f;
    case 6: return value < -0.5f ? -0.5f : value > 0.5f ? 0.5f : value;
    case 20: return positive < 5.0f ? positive : 5.0f;
    case 8: return positive < 8.0f ? positive : 8.0f;
    case 22: case 23: case 24: return positive < 1.0f ? positive : 1.0f;
    case 25: return value < -180.0f ? -180.0f : value > 180.0f ? 180.0f : value;
    case 27: return positive < 100.0f ? positive : 100.0f;
    default: return value;
  }
}

void one() {
  const int32_t count = static_cast<int32_t>(draw(4)), steps = static_cast<int32_t>(draw(4));
  const int32_t values = 6 + static_cast<int32_t>(draw(8) == 0 ? draw(60) : 0);
  const int32_t height = 1 + static_cast<int32_t>(draw(draw(4) ? 12 : 50));
  const int32_t width = 1 + static_cast<int32_t>(draw(draw(4) ? 12 : 600));
  std::vector<uint8_t> images(static_cast<size_t>(count) * height * width * 3);
  const uint32_t levels = 1 + draw(256);
  for (uint8_t& level : images) level = static_cast<uint8_t>(draw(levels));
  std::vector<int32_t> ops(static_cast<size_t>(count) * steps);
  bool comparable = true;
  std::vector<float> numbers(ops.size() * values);
  for (float& number : numbers) number = any_value();
  for (size_t i = 0; i < ops.size(); ++i) {
    // 0 to 16, 20 to 27, and 40 to 43, which need room for 8 values
    ops[i] = static_cast<int32_t>(draw(values < 8 ? 25 : 29));
    if (ops[i] > 16) ops[i] += 3;
    if (ops[i] > 27) ops[i] += 12;
    numbers[i * values] = first_value(ops[i], numbers[i * values]);
    if (ops[i] != 14) continue;
    if (draw(4) == 0) {  // weights may overflow, and what becomes of no number is left open
      comparable = false;
    } else {
      for (int v = 0; v < values; ++v) numbers[i * values + v] = static_cast<float>(draw(1000)) / (2000.0f * values);
    }
  }
  const float fill[3] = {static_cast<float>(draw(511)) / 2.0f, static_cast<float>(draw(256)), 255.0f};
  const bool filled = draw(2);
  std::vector<uint8_t> first;
  for (const char* variant : {"portable", "avx2", "avx512", static_cast<const char*>(nullptr)}) {
    if (variant != nullptr && !gp_has_variant(variant)) continue;
    const Exact<uint8_t> in(images), out(images.size());
    const bool in_place = draw(2);
    const gp_augment batch = {count, height, width, steps, values, static_cast<int32_t>(1 + draw(3)), variant, ops.data(),
                              numbers.data(), filled ? fill : nullptr, in.get(), in_place ? in.get() : out.get()};
    require(gp_augment_batch(&batch) == 0, "a program is refused");
    const std::vector<uint8_t> made(batch.out, batch.out + images.size());
    require(in_place || std::equal(images.begin(), images.end(), in.get()), "the input is changed");
    if (first.empty()) first = made;
    require(!comparable || made == first, "the levels depend on the variant, the threads or the place");
  }
}

}  // namespace

int main(int count, char** arguments) {
  return run_for(count, arguments, 3, "programs, the same levels by each variant", one);
}
