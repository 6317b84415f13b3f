#include "api.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <vector>

#include "augment.h"
#include "erase_mix.h"
#include "image.h"
#include "philox.h"
#include "pool.h"

namespace gpupipe {
namespace {

const Passes* passes_of(const char* variant) { return variant == nullptr ? &best_passes() : find_passes(variant); }

View view_of(const gp_view& view, int row) {
  const int32_t* window = view.windows + row * 4;
  const int32_t* resized = view.resized + row * 2;
  const int32_t* anchor = view.anchors + row * 2;
  const int32_t* own = view.outputs == nullptr ? nullptr : view.outputs + row * 2;
  const int32_t height = own == nullptr ? view.out_height : own[0], width = own == nullptr ? view.out_width : own[1];
  const size_t stride = own == nullptr ? static_cast<size_t>(height) * width * 3 : static_cast<size_t>(view.stride);
  return {{{window[0], window[1], window[2], window[3]}, resized[0], resized[1], anchor[0], anchor[1],
           height, width, view.flips[row] != 0},
          view.bicubic[row] != 0 ? Filter::bicubic : Filter::bilinear,
          view.fill,
          static_cast<Padding>(view.padding),
          view.out + row * stride};
}

const std::vector<View>& views_of(const gp_images& images, int row) {
  thread_local std::vector<View> views;
  views.clear();
  for (int32_t i = 0; i < images.view_count; ++i) views.push_back(view_of(images.views[i], row));
  return views;
}

Request request_of(const gp_images& images, int row) {
  return {images.data[row],
          static_cast<size_t>(images.bytes[row]),
          images.sizes[row * 2],
          images.sizes[row * 2 + 1],
          images.orientations[row] <= 8 ? images.orientations[row] : 1,  // others mean nothing
          images.fast != 0};
}

ImageMaker& maker() {
  thread_local ImageMaker mine;
  return mine;
}

// Runs `work(row)`, which gives a code, for each row; no exception leaves it.
template <typename Work>
void each_row(const gp_images& images, const Work& work) {
  for_each(images.count, images.threads, [&](int row) {
    try {
      images.codes[row] = work(row);
      maker().trim();
    } catch (const std::exception& error) {
      images.codes[row] = GP_NO_MEMORY;
      std::snprintf(images.messages + static_cast<size_t>(row) * GP_MESSAGE, GP_MESSAGE, "no memory: %s", error.what());
    }
  });
}

}  // namespace
}  // namespace gpupipe

using namespace gpupipe;

int32_t gp_abi(void) { return GP_ABI; }
int32_t gp_libjpeg_version(void) { return gp_jpeg_version(); }
const char* gp_best_variant(void) { return best_passes().name; }
int32_t gp_has_variant(const char* name) { return find_passes(name) != nullptr; }

int32_t gp_decode_crop_resize(const gp_images* images) {
  const Passes* passes = passes_of(images->variant);
  if (passes == nullptr) return -1;
  each_row(*images, [&](int row) {
    return maker().decode(request_of(*images, row), views_of(*images, row), images->limits, *passes,
                          images->messages + static_cast<size_t>(row) * GP_MESSAGE);
  });
  return 0;
}

int32_t gp_resize(const gp_images* images) {
  const Passes* passes = passes_of(images->variant);
  if (passes == nullptr) return -1;
  each_row(*images, [&](int row) {
    maker().resize(images->data[row], view_of(images->views[0], row), *passes);
    return GP_OK;
  });
  return 0;
}

int32_t gp_finish_batch(const gp_finish* batch) {
  const FinishKernels* kernels = find_finish(batch->variant == nullptr ? gp_best_variant() : batch->variant);
  if (kernels == nullptr) return -1;
  const bool channels_last = batch->channels_last != 0;
  const FinishBatch rows = {{static_cast<Dtype>(batch->dtype), channels_last, batch->offset, batch->scale, batch->table,
                             batch->exact},
                            batch->height, batch->width, batch->in, batch->rows, batch->sizes, batch->around,
                            static_cast<uint8_t*>(batch->out),
                            batch->erase_boxes, batch->erase_value, batch->erase_keys,
                            batch->partners, batch->weights, batch->mix_boxes};
  for_each(batch->count, batch->threads, [&](int row) { finish_row(rows, *kernels, row); });
  return 0;
}

int32_t gp_augment_batch(const gp_augment* batch) {
  const AugmentLoops* loops = find_augment(batch->variant == nullptr ? gp_best_variant() : batch->variant);
  if (loops == nullptr) return -1;
  const size_t image_bytes = static_cast<size_t>(batch->height) * batch->width * 3;
  std::atomic<bool> no_memory{false};
  for_each(batch->count, batch->threads, [&](int row) {
    thread_local Augmenter augmenter;
    uint8_t* image = batch->out + row * image_bytes;
    augmenter.begin();
    if (batch->in != batch->out) std::memcpy(image, batch->in + row * image_bytes, image_bytes);
    try {
      for (int s = 0; s < batch->steps; ++s) {
        const size_t at = static_cast<size_t>(row) * batch->steps + s;
        const Step step = {static_cast<Op>(batch->ops[at]), batch->numbers + at * batch->values, batch->values};
        augmenter.apply(*loops, step, batch->fill, image, batch->height, batch->width);
      }
    } catch (const std::exception&) {
      no_memory = true;
    }
    augmenter.trim();
  });
  return no_memory ? -2 : 0;
}

void gp_walk_files(const gp_walks* files) {
  for_each(files->count, files->threads, [&](int row) {
    const size_t size = static_cast<size_t>(files->bytes[row]);
    files->odd[row] = gp_walk(files->data[row], size, files->max_scans, files->headers + row);
  });
}

void gp_costs(int64_t count, const uint8_t* const* data, const int64_t* bytes, gp_cost* costs) {
  for (int64_t row = 0; row < count; ++row) costs[row] = gp_cost_of(data[row], static_cast<size_t>(bytes[row]));
}

void gp_plain_files(int64_t count, const uint8_t* const* data, const int64_t* bytes, int64_t most_pixels,
                    int32_t* sizes) {
  for (int64_t row = 0; row < count; ++row, sizes += 2) {
    gp_plain(data[row], static_cast<size_t>(bytes[row]), most_pixels, sizes, sizes + 1);
  }
}

void gp_philox(int64_t count, uint64_t* words, uint32_t key0, uint32_t key1) {
  for (int64_t i = 0; i < count; ++i) {
    Words counter;
    for (int k = 0; k < 4; ++k) counter.word[k] = static_cast<uint32_t>(words[k * count + i]);
    const Words made = philox(counter, key0, key1);
    for (int k = 0; k < 4; ++k) words[k * count + i] = made.word[k];
  }
}
