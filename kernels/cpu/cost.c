#include "cost.h"

#include <string.h>

enum { SOF0 = 0xC0, DHT = 0xC4, SOF9 = 0xC9, DAC = 0xCC, SOF15 = 0xCF, RST0 = 0xD0, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA,
       TEM = 0x01, JPG = 0xC8 };
enum { MOST_COMPONENTS = 10, MOST_SCANNED = 4, MOST_FACTOR = 4, ARITHMETIC = 64 };

typedef struct {
  int marker, count; /* 0 before the frame */
  int height, width;
  uint8_t ids[MOST_COMPONENTS];
  int64_t blocks[MOST_COMPONENTS];
} frame;

static int is_frame(int marker) {
  return marker >= SOF0 && marker <= SOF15 && marker != DHT && marker != JPG && marker != DAC;
}
static int is_progressive(const frame *f) { return (f->marker & 3) == 2; }

/* The next marker from `at` on, which is put behind it; -1 where there is none. */
static int next_marker(const uint8_t **at, const uint8_t *end) {
  for (;;) {
    const uint8_t *found = (const uint8_t *)memchr(*at, 0xFF, (size_t)(end - *at));
    while (found != NULL && found < end && *found == 0xFF) found++;
    if (found == NULL || found == end) return -1;
    *at = found + 1;
    if (*found != 0) return *found;
  }
}

static int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

/* Whether it is one; so is each of the next two. */
static int read_frame(frame *f, int marker, const uint8_t *in, size_t length) {
  int across = 1, down = 1;
  if (length < 6 || in[5] < 1 || in[5] > MOST_COMPONENTS || length < 6 + 3 * (size_t)in[5]) return 0;
  f->marker = marker, f->count = in[5];
  f->height = in[1] << 8 | in[2], f->width = in[3] << 8 | in[4];
  for (int i = 0; i < f->count; i++) {
    const int factors = in[7 + 3 * i], h = factors >> 4, v = factors & 15;
    if (h < 1 || h > MOST_FACTOR || v < 1 || v > MOST_FACTOR) return 0;
    if (h > across) across = h;
    if (v > down) down = v;
  }
  for (int i = 0; i < f->count; i++) {
    const int factors = in[7 + 3 * i];
    f->ids[i] = in[6 + 3 * i];
    f->blocks[i] = divide_up(f->height, 8 * down) * (factors & 15) *
                   divide_up(f->width, 8 * across) * (factors >> 4);
  }
  return 1;
}

static int read_scan(const frame *f, const uint8_t *in, size_t length, gp_cost *cost) {
  int64_t blocks = 0;
  if (f->marker == 0 || length < 1 || in[0] < 1 || in[0] > MOST_SCANNED || length < 4 + 2 * (size_t)in[0]) return 0;
  for (int i = 0; i < in[0]; i++) {
    const uint8_t *id = (const uint8_t *)memchr(f->ids, in[1 + 2 * i], (size_t)f->count);
    if (id == NULL) return 0;
    blocks += f->blocks[id - f->ids];
  }
  cost->work += blocks * (f->marker >= SOF9 ? ARITHMETIC : 1);
  cost->scans++;
  if (cost->scans == 1 && (is_progressive(f) || in[0] < f->count)) {
    for (int i = 0; i < f->count; i++) cost->kept += f->blocks[i];
  }
  return 1;
}

gp_cost gp_cost_of(const uint8_t *data, size_t size) {
  gp_cost cost = {0, 0, 0, 0, 0, 0};
  frame f = {.marker = 0};
  const uint8_t *at = data + 2, *end = data + size;
  if (size < 2 || data[0] != 0xFF || data[1] != SOI) return cost;
  for (;;) {
    const int marker = next_marker(&at, end);
    if (marker < 0 || marker == EOI) return cost;
    if (marker == TEM || (marker >= RST0 && marker <= SOI)) continue; /* nothing belongs to them */
    const size_t length = end - at < 2 ? 0 : (size_t)at[0] << 8 | at[1];
    if (length < 2 || (size_t)(end - at) < length) return cost;
    if (f.marker == 0 && is_frame(marker)) {
      if (!read_frame(&f, marker, at + 2, length - 2)) return cost;
      cost.channels = f.count, cost.height = f.height, cost.width = f.width;
    } else if (marker == SOS) {
      if (!read_scan(&f, at + 2, length - 2, &cost)) return cost;
      if (cost.kept == 0) return cost; /* all of it is in this scan */
    }
    at += length;
  }
}
