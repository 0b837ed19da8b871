/* A software delegate: a TFLite external delegate in plain C that stands in for an accelerator in tests.
 *
 * It claims nodes as a vendor's delegate does, through the external delegate entry points and the partitioning of
 * the runtime, and then runs the runtime's own kernels for them on the CPU. It is no NPU and no measure of one.
 *
 * Options: claim=all | comma-separated builtin operator codes; nodes=comma-separated node indices (claimed too);
 * fail_prepare=1; most_rows=N (tensors with more rows are refused); fail_after=N (invocations that succeed before
 * every further one fails); crash=load | prepare | invoke | exit (it takes the process down there, or at loading as if
 * all were done); wrong=1 (it answers with garbage and no error); delay_us=N (each invocation of a partition waits so long); meet=N:FILE (each writes a byte to the
 * file and goes on when it has N, or fails after ten seconds); static_only=1 (as delegates that take no tensors of
 * varying size);
 * device=FILE (creation fails where there is no such file); report=FILE (one line per partition: the claimed nodes).
 *
 * The structs below repeat only the beginning of the runtime's, whose order is stable from TFLite 2.14 on. */
#define _POSIX_C_SOURCE 200809L
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STATUS_OK = 0, STATUS_ERROR = 1 };
enum { ALLOW_DYNAMIC_TENSORS = 1 };
enum { CONSTANT = 1 };
enum { BUILTIN_CODES = 512, NODES = 4096, HEADROOM = 16 };

typedef struct {
  int size;
  int items[];
} Indices;

typedef struct Context Context;
typedef struct Delegate Delegate;

typedef struct {
  Indices *inputs, *outputs, *intermediates, *temporaries;
  void *kernel_data, *builtin_options;
  const void *custom_options;
  int custom_options_size;
  Delegate *delegate;
  bool may_have_side_effect;
} Node;

typedef struct {
  void *(*init)(Context *, const char *, size_t);
  void (*free)(Context *, void *);
  int (*prepare)(Context *, Node *);
  int (*invoke)(Context *, Node *);
  const char *(*profiling_text)(const Context *, const Node *);
  int32_t builtin_code;
  const char *custom_name;
  int version;
  void *newer_fields[12]; /* zero; the runtime copies as much as its own struct holds */
} Kernel;

typedef struct {
  int type;
  unsigned char *data;
  void *dimensions;
  int32_t quantization[2];
  int allocation;
  size_t size_bytes;
  void *unused_fields[8];
} Tensor;

struct Context {
  size_t tensors_size;
  int (*get_execution_plan)(Context *, Indices **);
  Tensor *tensors;
  void *implementation;
  void *resize_tensor;
  void (*report_error)(Context *, const char *, ...);
  int (*add_tensors)(Context *, int, int *);
  int (*get_node)(Context *, int, Node **, Kernel **);
  int (*replace_nodes)(Context *, Kernel, const Indices *, Delegate *);
};

typedef struct {
  Delegate *delegate;
  Indices *nodes, *inputs, *outputs;
} Partition;

struct Delegate {
  void *data;
  int (*prepare)(Context *, Delegate *);
  void *copy_from_handle, *copy_to_handle, *free_handle;
  int64_t flags;
  void *newer_fields[8];
};

typedef enum { CRASH_NEVER, CRASH_LOAD, CRASH_PREPARE, CRASH_INVOKE, CRASH_EXIT } Crash;

typedef struct {
  bool claims[BUILTIN_CODES], claimed_nodes[NODES];
  bool fail_prepare, static_only, wrong;
  int most_rows; /* 0: no limit */
  Crash crash;
  long invocations_left; /* below zero: no limit */
  long delay_us;
  char report[1024], meeting[1024];
  long meeting_size;
  const Context *context; /* of the last partition that was prepared */
  size_t capacity;        /* tensors that the context's array is known to hold before it moves */
} Settings;

/* One partition: copies of the claimed nodes and of their kernels. */
typedef struct {
  Settings *settings;
  int count;
  Node *nodes;
  Kernel *kernels;
} Claimed;

static Indices *new_indices(int size) {
  Indices *made = malloc(sizeof *made + (size_t)size * sizeof(int));
  made->size = size;
  return made;
}

static bool holds(const Indices *indices, int wanted) {
  for (int i = 0; i < indices->size; i++)
    if (indices->items[i] == wanted) return true;
  return false;
}

static void write_report(const Settings *settings, const Indices *nodes) {
  FILE *file = settings->report[0] ? fopen(settings->report, "a") : NULL;
  if (!file) return;
  for (int i = 0; i < nodes->size; i++) fprintf(file, "%s%d", i ? " " : "", nodes->items[i]);
  fprintf(file, "\n");
  fclose(file);
}

/* Nodes can only be looked up here and in the delegate's prepare, so they are copied. Kernels replace their list of
 * temporaries while they prepare, so that list gets a copy of its own. */
static void *partition_init(Context *context, const char *buffer, size_t size) {
  (void)size;
  const Partition *partition = (const Partition *)buffer;
  Claimed *claimed = calloc(1, sizeof *claimed);
  claimed->settings = partition->delegate->data;
  claimed->nodes = calloc((size_t)partition->nodes->size, sizeof(Node));
  claimed->kernels = calloc((size_t)partition->nodes->size, sizeof(Kernel));
  for (int i = 0; i < partition->nodes->size; i++) {
    Node *node;
    Kernel *kernel;
    if (context->get_node(context, partition->nodes->items[i], &node, &kernel) != STATUS_OK) break;
    claimed->nodes[i] = *node;
    memcpy(&claimed->kernels[i], kernel, offsetof(Kernel, newer_fields));
    claimed->nodes[i].temporaries = new_indices(node->temporaries->size);
    memcpy(claimed->nodes[i].temporaries->items, node->temporaries->items, (size_t)node->temporaries->size * sizeof(int));
    claimed->count++;
  }
  write_report(claimed->settings, partition->nodes);
  return claimed;
}

static void partition_free(Context *context, void *data) {
  (void)context;
  Claimed *claimed = data;
  for (int i = 0; i < claimed->count; i++) free(claimed->nodes[i].temporaries);
  free(claimed->nodes);
  free(claimed->kernels);
  free(claimed);
}

/* Tensors between claimed nodes, and the kernels' scratch, belong to no other node any more. Naming them as the
 * partition's temporaries makes the runtime allocate them. */
static void adopt(Indices **adopted, const Node *partition, const Indices *tensors) {
  for (int i = 0; i < tensors->size; i++) {
    int tensor = tensors->items[i];
    if (tensor < 0 || holds(partition->inputs, tensor) || holds(partition->outputs, tensor)) continue;
    Indices *grown = new_indices((*adopted)->size + 1);
    memcpy(grown->items, (*adopted)->items, (size_t)(*adopted)->size * sizeof(int));
    grown->items[(*adopted)->size] = tensor;
    free(*adopted);
    *adopted = grown;
  }
}

/* Kernels hold pointers to tensors while they add some. The runtime keeps room for so many before it prepares a node;
 * a partition is one node and many kernels. An array that has to grow doubles, so it is made to grow between them. */
static int make_room(Context *context, Settings *settings) {
  while (context->tensors_size + HEADROOM > settings->capacity) {
    const Tensor *tensors = context->tensors;
    size_t size = context->tensors_size;
    int added;
    if (context->add_tensors(context, 1, &added) != STATUS_OK) return STATUS_ERROR;
    if (context->tensors != tensors) settings->capacity = 2 * size;
  }
  return STATUS_OK;
}

static bool has_too_many_rows(const Context *context, const Node *partition, int most_rows) {
  for (int i = 0; most_rows > 0 && i < partition->inputs->size; i++) {
    const Tensor *tensor = &context->tensors[partition->inputs->items[i]];
    const Indices *sizes = tensor->dimensions;
    if (tensor->allocation != CONSTANT && sizes->size > 0 && sizes->items[0] > most_rows) return true;
  }
  return false;
}

static int partition_prepare(Context *context, Node *partition) {
  Claimed *claimed = partition->kernel_data;
  if (claimed->settings->crash == CRASH_PREPARE) abort();
  if (claimed->settings->fail_prepare) {
    context->report_error(context, "software delegate: told to fail in prepare. ");
    return STATUS_ERROR;
  }
  if (has_too_many_rows(context, partition, claimed->settings->most_rows)) {
    context->report_error(context, "software delegate: too many rows. ");
    return STATUS_ERROR;
  }
  Settings *settings = claimed->settings;
  if (settings->context != context) settings->capacity = 0;
  settings->context = context;
  if (settings->capacity < context->tensors_size + HEADROOM) settings->capacity = context->tensors_size + HEADROOM;
  Indices *adopted = new_indices(0);
  for (int i = 0; i < claimed->count; i++) {
    Node *node = &claimed->nodes[i];
    Kernel *kernel = &claimed->kernels[i];
    bool room = make_room(context, settings) == STATUS_OK;
    if (!room || (kernel->prepare && kernel->prepare(context, node) != STATUS_OK)) {
      free(adopted);
      return STATUS_ERROR;
    }
    adopt(&adopted, partition, node->temporaries);
    adopt(&adopted, partition, node->outputs);
  }
  free(partition->temporaries);
  partition->temporaries = adopted;
  return STATUS_OK;
}

/* The highest bit of every byte: another class wins, and numbers stay finite ones. */
static void spoil(const Context *context, const Indices *tensors) {
  for (int i = 0; i < tensors->size; i++) {
    Tensor *tensor = &context->tensors[tensors->items[i]];
    for (size_t at = 0; at < tensor->size_bytes; at++) tensor->data[at] ^= 0x80;
  }
}

static void wait_us(long delay_us) {
  struct timespec delay = {delay_us / 1000000, delay_us % 1000000 * 1000};
  nanosleep(&delay, NULL);
}

static bool met(const Settings *settings) {
  FILE *file = fopen(settings->meeting, "a");
  if (!file) return false;
  fputc('.', file);
  fflush(file);
  for (int tries = 0; tries < 10000; tries++) {
    fseek(file, 0, SEEK_END);
    if (ftell(file) >= settings->meeting_size) break;
    wait_us(1000);
  }
  bool all = ftell(file) >= settings->meeting_size;
  fclose(file);
  return all;
}

static int partition_invoke(Context *context, Node *partition) {
  Claimed *claimed = partition->kernel_data;
  const Settings *settings = claimed->settings;
  if (settings->crash == CRASH_INVOKE) abort();
  if (settings->delay_us > 0) wait_us(settings->delay_us);
  if (settings->meeting_size && !met(settings)) {
    context->report_error(context, "software delegate: alone at the meeting. ");
    return STATUS_ERROR;
  }
  long *left = &claimed->settings->invocations_left;
  if (*left == 0) {
    context->report_error(context, "software delegate: told to fail in invoke. ");
    return STATUS_ERROR;
  }
  if (*left > 0) (*left)--;
  for (int i = 0; i < claimed->count; i++)
    if (claimed->kernels[i].invoke(context, &claimed->nodes[i]) != STATUS_OK) return STATUS_ERROR;
  if (settings->wrong) spoil(context, partition->outputs);
  return STATUS_OK;
}

static int delegate_prepare(Context *context, Delegate *delegate) {
  const Settings *settings = delegate->data;
  Indices *plan;
  if (context->get_execution_plan(context, &plan) != STATUS_OK) return STATUS_ERROR;
  Indices *order = new_indices(plan->size); /* the runtime's own list changes during look-ups */
  memcpy(order->items, plan->items, (size_t)plan->size * sizeof(int));
  Indices *claim = new_indices(order->size);
  claim->size = 0;
  for (int i = 0; i < order->size; i++) {
    Node *node;
    Kernel *kernel;
    if (context->get_node(context, order->items[i], &node, &kernel) != STATUS_OK) continue;
    int32_t code = kernel->builtin_code;
    bool claimed = code >= 0 && code < BUILTIN_CODES && settings->claims[code];
    if (claimed || (order->items[i] < NODES && settings->claimed_nodes[order->items[i]]))
      claim->items[claim->size++] = order->items[i];
  }
  Kernel partition = {.init = partition_init,
                      .free = partition_free,
                      .prepare = partition_prepare,
                      .invoke = partition_invoke,
                      .custom_name = "SoftwareDelegate",
                      .version = 1};
  int status = claim->size ? context->replace_nodes(context, partition, claim, delegate) : STATUS_OK;
  free(claim);
  free(order);
  return status;
}

static Crash crash_at(const char *when) {
  if (!strcmp(when, "load")) return CRASH_LOAD;
  if (!strcmp(when, "prepare")) return CRASH_PREPARE;
  if (!strcmp(when, "exit")) return CRASH_EXIT;
  return !strcmp(when, "invoke") ? CRASH_INVOKE : CRASH_NEVER;
}

static void mark(bool *marks, int size, const char *numbers) {
  for (const char *at = numbers; *at; at += strcspn(at, ","), at += *at == ',') {
    int number = atoi(at);
    if (number >= 0 && number < size) marks[number] = true;
  }
}

/* NULL, or what is wrong with the option. */
static const char *set_option(Settings *settings, const char *key, const char *value) {
  if (!strcmp(key, "claim")) {
    bool all = !strcmp(value, "all");
    for (int i = 0; i < BUILTIN_CODES; i++) settings->claims[i] = all;
    if (!all) mark(settings->claims, BUILTIN_CODES, value);
  } else if (!strcmp(key, "nodes")) {
    mark(settings->claimed_nodes, NODES, value);
  } else if (!strcmp(key, "fail_prepare")) {
    settings->fail_prepare = atoi(value) != 0;
  } else if (!strcmp(key, "static_only")) {
    settings->static_only = atoi(value) != 0;
  } else if (!strcmp(key, "most_rows")) {
    settings->most_rows = atoi(value);
  } else if (!strcmp(key, "fail_after")) {
    settings->invocations_left = atol(value);
  } else if (!strcmp(key, "crash")) {
    settings->crash = crash_at(value);
    if (settings->crash == CRASH_NEVER) return "software delegate: crash is load, prepare, invoke or exit";
  } else if (!strcmp(key, "wrong")) {
    settings->wrong = atoi(value) != 0;
  } else if (!strcmp(key, "delay_us")) {
    settings->delay_us = atol(value);
  } else if (!strcmp(key, "meet")) {
    const char *file = strchr(value, ':');
    if (!file) return "software delegate: meet is N:FILE";
    settings->meeting_size = atol(value);
    snprintf(settings->meeting, sizeof settings->meeting, "%s", file + 1);
  } else if (!strcmp(key, "device")) {
    FILE *device = fopen(value, "r");
    if (!device) return "software delegate: no such device";
    fclose(device);
  } else if (!strcmp(key, "report")) {
    snprintf(settings->report, sizeof settings->report, "%s", value);
  } else {
    return "software delegate: unknown option";
  }
  return NULL;
}

__attribute__((visibility("default"))) Delegate *tflite_plugin_create_delegate(char **keys, char **values, size_t count,
                                                                              void (*report)(const char *)) {
  Settings *settings = calloc(1, sizeof *settings);
  settings->invocations_left = -1;
  for (size_t i = 0; i < count; i++) {
    const char *problem = set_option(settings, keys[i], values[i]);
    if (!problem) continue;
    if (report) report(problem);
    free(settings);
    return NULL;
  }
  if (settings->crash == CRASH_LOAD) abort();
  if (settings->crash == CRASH_EXIT) exit(0);
  Delegate *delegate = calloc(1, sizeof *delegate);
  delegate->data = settings;
  delegate->prepare = delegate_prepare;
  /* Without this flag the runtime drops the scratch tensors that the claimed kernels ask for. */
  delegate->flags = settings->static_only ? 0 : ALLOW_DYNAMIC_TENSORS;
  return delegate;
}

__attribute__((visibility("default"))) void tflite_plugin_destroy_delegate(Delegate *delegate) {
  if (!delegate) return;
  free(delegate->data);
  free(delegate);
}
