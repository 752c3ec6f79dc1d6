// Computes torch's CUDA operators on the CPU, so that training on a paper GPU gives real numbers.
//
// Every CUDA kernel of torch is wrapped. A call first runs torch's own kernel: it checks arguments, allocates
// results with the real allocator, draws from the real CUDA generator and launches (cudart counts that). Then the
// CPU kernel of the same operator is enqueued in the current stream. It uses the GPU's memory, which is memory of
// this process, and its results are copied into those allocated by torch's kernel. Therefore the host runs ahead of
// the stream as on a GPU, and an error of the CPU kernel (an index out of range) becomes a device-side assert.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/ConvUtils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <set>
#include <unordered_map>

#include "runtime.h"

using at::Tensor;
using c10::IValue;
using Stack = torch::jit::Stack;

// While torch's own CUDA kernel of an operator runs, operators that it calls compute nothing, because the outer
// operator computes the complete result: an in-place one would otherwise be applied twice.
struct Nested {
  Nested() { paper::operator_depth()++; }
  ~Nested() { paper::operator_depth()--; }
};

// The host needs the result of these immediately, for a size or a return value. They wait for the stream, compute on
// the host, also inside other operators, and never call torch's kernel, which would read values never computed.
static const std::set<std::string> SYNCHRONOUS = {
    "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
    "bincount", "repeat_interleave", "equal", "histc", "_histogramdd_bin_edges", "segment_reduce",
};
// Likewise: torch's kernels call libraries that are not simulated (cuFFT, cuSOLVER, MAGMA).
static const char* const SYNCHRONOUS_PREFIXES[] = {
    "_fft_", "linalg_", "_linalg_", "cholesky", "_cholesky", "geqrf", "ormqr", "lu_unpack", "triangular_solve",
};

static bool is_synchronous(const std::string& name) {
  if (SYNCHRONOUS.count(name)) return true;
  for (const char* prefix : SYNCHRONOUS_PREFIXES)
    if (!name.compare(0, strlen(prefix), prefix)) return true;
  return false;
}

// Return a CPU tensor in the memory of a CUDA tensor. It does not own the memory: as on a GPU, the caching allocator
// may reuse it as soon as the host has released it, and only the order within a stream protects it.
static Tensor alias_of(const Tensor& tensor) {
  TORCH_CHECK(tensor.layout() == c10::kStrided, "the paper GPU computes with strided tensors only, not ", tensor.layout());
  auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  if (!tensor.numel()) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return at::from_blob(tensor.unsafeGetTensorImpl()->mutable_data(), tensor.sizes(), tensor.strides(), options);
}

// The arguments of one call, translated to the CPU.
struct Translation {
  std::unordered_map<c10::TensorImpl*, Tensor> aliases;  // the same CUDA tensor twice is the same alias
  at::Generator generator;                               // replaces a CUDA generator
  uint64_t bytes = 0;                                    // of the CUDA tensors

  Tensor of(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_cuda()) {
      // CUDA kernels read numbers from host memory when they are launched.
      Tensor copy = tensor.clone();
      copy.unsafeGetTensorImpl()->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
      return copy;
    }
    Tensor& alias = aliases[tensor.unsafeGetTensorImpl()];
    if (!alias.defined()) {
      alias = alias_of(tensor);
      bytes += tensor.nbytes();
    }
    return alias;
  }

  IValue of(const IValue& value) {
    if (value.isTensor()) return of(value.toTensor());
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& each : value.toTensorVector()) list.push_back(of(each));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const std::optional<Tensor>& each : value.toOptionalTensorVector())
        list.push_back(each ? std::optional<Tensor>(of(*each)) : std::nullopt);
      return list;
    }
    if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(at::kCPU);
    return value;
  }
};

static std::optional<c10::Device> device_in(const std::vector<IValue>& values) {
  for (const IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cuda()) return value.toTensor().device();
    if (value.isDevice() && value.toDevice().is_cuda()) return value.toDevice();
    if (value.isTensorList())
      for (const Tensor& each : value.toTensorVector())
        if (each.is_cuda()) return each.device();
  }
  return std::nullopt;
}

static paper::Stream& current_stream(c10::Device device) {
  c10::cuda::CUDAGuard guard(device);
  return paper::stream_of(c10::cuda::getCurrentCUDAStream(device.index()).stream());
}

// Enqueue a computation in the current stream of a device. An exception corresponds to a kernel's assert.
static void compute_later(c10::Device device, std::string name, std::function<void()> work) {
  current_stream(device).put([name = std::move(name), work = std::move(work)] {
    try {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      work();
    } catch (const std::exception& error) {
      std::string text = error.what();
      fprintf(stderr, "paper GPU: %s: %s\n", name.c_str(), text.substr(0, text.find("\nException raised")).c_str());
      paper::set_context_error(cudaErrorAssert);
    }
  });
}

static void copy_result(const Tensor& to, const Tensor& from, const std::string& name) {
  if (!to.defined() || !from.defined() || !to.numel()) return;
  TORCH_CHECK(to.sizes() == from.sizes(), name, " gives ", from.sizes(), " on the CPU and ", to.sizes(), " on CUDA");
  to.copy_(from);
}

// A replacement of a CPU kernel: takes translated arguments, returns results; None: unchanged.
using Substitute = std::function<std::vector<IValue>(const std::vector<IValue>&)>;
static std::unordered_map<std::string, Substitute> substitutes();

class Computed : public c10::OperatorKernel {
 public:
  Computed(const c10::OperatorHandle& op, Substitute substitute)
      : original_(op.getComputedKernelForDispatchKey(c10::DispatchKey::CUDA)),
        substitute_(std::move(substitute)),
        is_copy_(op.operator_name().name == "aten::copy_"),
        is_random_(op.hasTag(at::Tag::nondeterministic_seeded)),
        has_cpu_kernel_(op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    size_t num_arguments = op.schema().arguments().size();
    std::vector<IValue> arguments(stack->end() - num_arguments, stack->end());
    if (paper::operator_depth()) return original_.callBoxed(op, keys, stack);
    // A copy between host and device consists of device copies and memcpy, each of which has its effect.
    if (is_copy_ && (!arguments[0].toTensor().is_cuda() || !arguments[1].toTensor().is_cuda()))
      return original_.callBoxed(op, keys, stack);

    Translation translation;
    if (is_random_) translation.generator = generator_for(arguments);
    uint64_t launches_before = paper::launches_of_thread();
    {
      Nested nested;
      original_.callBoxed(op, keys, stack);
    }
    // Without a launch, torch's kernel was sufficient: a view, an empty tensor, memcpy, memset.
    if (paper::launches_of_thread() == launches_before) return;
    TORCH_CHECK_NOT_IMPLEMENTED(has_cpu_kernel_ || substitute_, "the paper GPU cannot compute ", op.operator_name(),
                                ": it has no CPU kernel");

    Stack translated;
    for (size_t i = 0; i < num_arguments; i++) {
      // Without a generator use CUDA's default, not the CPU's.
      bool is_generator = is_random_ && op.schema().arguments()[i].name() == "generator";
      translated.push_back(is_generator ? IValue(translation.generator) : translation.of(arguments[i]));
    }
    paper::Counters& count = paper::counters();
    count.operators++;
    count.operator_bytes_read += translation.bytes;
    for (size_t i = 0; i < num_arguments; i++)
      if (const auto* alias = op.schema().arguments()[i].alias_info(); alias && alias->isWrite())
        count.operator_bytes_written += bytes_of(arguments[i]);

    std::vector<IValue> results(stack->end() - op.schema().returns().size(), stack->end());
    std::vector<IValue> destinations;
    for (const IValue& result : results) destinations.push_back(destination_of(result, translation));
    c10::Device device = *device_in(device_in(arguments) ? arguments : results);
    std::string name = op.operator_name().name;
    compute_later(device, name, [op, name, translated, destinations, substitute = substitute_]() mutable {
      std::vector<IValue> found;
      if (substitute) {
        found = substitute(translated);
      } else {
        op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &translated);
        found = std::move(translated);
      }
      TORCH_INTERNAL_ASSERT(found.size() == destinations.size(), name);
      for (size_t i = 0; i < found.size(); i++) {
        if (destinations[i].isTensor() && found[i].isTensor())
          copy_result(destinations[i].toTensor(), found[i].toTensor(), name);
        if (destinations[i].isTensorList() && found[i].isTensorList())
          for (size_t k = 0; k < destinations[i].toTensorVector().size(); k++)
            copy_result(destinations[i].toTensorVector()[k], found[i].toTensorVector()[k], name);
      }
    });
  }

 private:
  c10::SafeKernelFunction original_;
  Substitute substitute_;
  bool is_copy_, is_random_, has_cpu_kernel_;

  static uint64_t bytes_of(const IValue& value) {
    uint64_t bytes = 0;
    if (value.isTensor() && value.toTensor().defined()) bytes = value.toTensor().nbytes();
    if (value.isTensorList())
      for (const Tensor& each : value.toTensorVector()) bytes += each.nbytes();
    return bytes;
  }

  // A new result needs a copy; one that is an argument was changed in place.
  static IValue destination_of(const IValue& result, Translation& translation) {
    auto of_tensor = [&](const Tensor& tensor) {
      bool is_new = tensor.defined() && tensor.is_cuda() && !translation.aliases.count(tensor.unsafeGetTensorImpl());
      if (is_new) paper::counters().operator_bytes_written += tensor.nbytes();
      return is_new ? alias_of(tensor) : Tensor();
    };
    if (result.isTensor()) return of_tensor(result.toTensor());
    if (!result.isTensorList()) return IValue();
    c10::List<Tensor> list;
    for (const Tensor& each : result.toTensorVector()) list.push_back(of_tensor(each));
    return list;
  }

  // A CPU generator derived from the CUDA generator's state before the call, which torch's kernel then advances:
  // saving and restoring that state gives the same numbers, as on a GPU.
  static at::Generator generator_for(const std::vector<IValue>& arguments) {
    at::Generator of_cuda;
    for (const IValue& each : arguments)
      if (each.isGenerator()) of_cuda = each.toGenerator();
    if (!of_cuda.defined()) {
      auto device = device_in(arguments);
      of_cuda = at::globalContext().defaultGenerator(device ? *device : c10::Device(at::kCUDA, paper::current_device()));
    }
    std::lock_guard<std::mutex> lock(of_cuda.mutex());
    uint64_t mixed = of_cuda.current_seed() * 0x9E3779B97F4A7C15ull + of_cuda.get_offset() * 0xBF58476D1CE4E5B9ull;
    return at::detail::createCPUGenerator((mixed ^ (mixed >> 32)) & 0xffffffff);
  }
};

class ComputedNow : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    size_t num_arguments = op.schema().arguments().size();
    std::vector<IValue> arguments(stack->end() - num_arguments, stack->end());
    torch::jit::drop(*stack, num_arguments);
    c10::Device device = *device_in(arguments);
    paper::counters().synchronizations++;
    {
      Nested nested;
      paper::count_library_launch();
    }
    current_stream(device).synchronize();
    C10_CUDA_CHECK(paper::context_error());
    Translation translation;
    Stack translated;
    for (const IValue& each : arguments) translated.push_back(translation.of(each));
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &translated);
    std::unordered_map<c10::TensorImpl*, IValue> originals;
    for (size_t i = 0; i < num_arguments; i++)
      if (arguments[i].isTensor()) originals[translation.of(arguments[i].toTensor()).unsafeGetTensorImpl()] = arguments[i];
    for (const IValue& result : translated) {
      if (!result.isTensor() || !result.toTensor().defined()) {
        stack->push_back(result);
      } else if (auto original = originals.find(result.toTensor().unsafeGetTensorImpl()); original != originals.end()) {
        stack->push_back(original->second);
      } else {
        Tensor found = result.toTensor();
        Tensor made;
        {
          // With deterministic algorithms torch fills new memory. Nested, it is not filled after the copy.
          Nested nested;
          made = at::empty_strided(found.sizes(), found.strides(), found.options().device(device));
        }
        copy_result(alias_of(made), found, op.operator_name().name);
        stack->push_back(made);
      }
    }
  }
};

// ---- convolutions, which torch would compute with cuDNN: one launch each, as in cuDNN's usual algorithms

static Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                          at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                          at::IntArrayRef output_padding, int64_t groups) {
  TORCH_CHECK(input.scalar_type() == weight.scalar_type(), "Input type (", input.scalar_type(), ") and weight type (",
              weight.scalar_type(), ") should be the same");
  TORCH_CHECK(input.device() == weight.device(), "input and weight are on different devices");
  // Checks shapes as torch does, and returns the result's.
  Tensor shape = at::convolution(input.to(at::kMeta), weight.to(at::kMeta), bias ? bias->to(at::kMeta) : bias, stride,
                                 padding, dilation, transposed, output_padding, groups);
  bool has_channels_last = input.suggest_memory_format() == at::MemoryFormat::ChannelsLast ||
                           weight.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  auto format = has_channels_last && input.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  Tensor output = at::empty(shape.sizes(), input.options().memory_format(format));
  Nested nested;
  paper::count_library_launch();
  auto numbers = [](at::IntArrayRef values) { return values.vec(); };
  compute_later(input.device(), "convolution",
                [to = alias_of(output), x = alias_of(input), w = alias_of(weight),
                 b = bias && bias->defined() ? std::optional<Tensor>(alias_of(*bias)) : std::nullopt, s = numbers(stride),
                 p = numbers(padding), d = numbers(dilation), transposed, o = numbers(output_padding), groups] {
                  // Tensor cores accumulate in 32 bits, and the CPU is slow in 16.
                  auto wide = at::isReducedFloatingType(x.scalar_type()) ? at::kFloat : x.scalar_type();
                  copy_result(to, at::convolution(x.to(wide), w.to(wide), b ? b->to(wide) : b, s, p, d, transposed, o, groups),
                              "convolution");
                });
  return output;
}

static std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, at::OptionalIntArrayRef bias_sizes,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  std::array<Tensor, 3> made;
  if (mask[0]) made[0] = at::empty_like(input);
  if (mask[1]) made[1] = at::empty_like(weight);
  if (mask[2]) made[2] = at::empty({gradient.size(1)}, gradient.options());
  std::array<Tensor, 3> destinations;
  Nested nested;
  for (int i = 0; i < 3; i++) {
    if (!mask[i]) continue;
    paper::count_library_launch();
    destinations[i] = alias_of(made[i]);
  }
  std::vector<int64_t> of_bias = bias_sizes ? bias_sizes->vec() : std::vector<int64_t>{gradient.size(1)};
  compute_later(input.device(), "convolution_backward",
                [destinations, g = alias_of(gradient), x = alias_of(input), w = alias_of(weight), of_bias, s = stride.vec(),
                 p = padding.vec(), d = dilation.vec(), transposed, o = output_padding.vec(), groups, mask] {
                  auto wide = at::isReducedFloatingType(x.scalar_type()) ? at::kFloat : x.scalar_type();
                  auto found = at::convolution_backward(g.to(wide), x.to(wide), w.to(wide), of_bias, s, p, d, transposed, o,
                                                        groups, mask);
                  copy_result(destinations[0], std::get<0>(found), "convolution_backward");
                  copy_result(destinations[1], std::get<1>(found), "convolution_backward");
                  copy_result(destinations[2], std::get<2>(found), "convolution_backward");
                });
  return {made[0], made[1], made[2]};
}

// ---- operators that the CPU does not have, or not in this form

static std::optional<Tensor> optional_tensor(const IValue& value) {
  return value.isNone() || !value.toTensor().defined() ? std::nullopt : std::optional<Tensor>(value.toTensor());
}

// Return a vector over the channels in the shape that broadcasts over an (N, C, …) tensor.
static Tensor per_channel(const Tensor& vector, const Tensor& like) {
  std::vector<int64_t> shape(like.dim(), 1);
  shape[1] = vector.numel();
  return vector.to(at::kFloat).reshape(shape);
}
static std::vector<int64_t> all_but_channels(const Tensor& tensor) {
  std::vector<int64_t> dims;
  for (int64_t i = 0; i < tensor.dim(); i++)
    if (i != 1) dims.push_back(i);
  return dims;
}

static void update_running(const IValue& running_mean, const IValue& running_var, const Tensor& mean, const Tensor& var,
                           double momentum) {
  if (auto running = optional_tensor(running_mean)) running->mul_(1 - momentum).add_(mean, momentum);
  if (auto running = optional_tensor(running_var)) running->mul_(1 - momentum).add_(var, momentum);
}

static std::unordered_map<std::string, Substitute> substitutes() {
  using Values = std::vector<IValue>;
  std::unordered_map<std::string, Substitute> table;

  // SyncBatchNorm (torch/nn/modules/_functions.py)
  table["batch_norm_stats"] = [](const Values& in) -> Values {  // input, eps
    Tensor x = in[0].toTensor().to(at::kFloat);
    auto [var, mean] = at::var_mean(x, all_but_channels(x), false);
    return {mean, at::rsqrt(var + in[1].toDouble())};
  };
  table["batch_norm_elemt"] = [](const Values& in) -> Values {  // input, weight, bias, mean, invstd, eps
    Tensor x = in[0].toTensor().to(at::kFloat);
    Tensor y = (x - per_channel(in[3].toTensor(), x)) * per_channel(in[4].toTensor(), x);
    if (auto weight = optional_tensor(in[1])) y = y * per_channel(*weight, x);
    if (auto bias = optional_tensor(in[2])) y = y + per_channel(*bias, x);
    return {y};
  };
  table["batch_norm_gather_stats_with_counts"] = [](const Values& in) -> Values {
    // input, mean, invstd, running_mean, running_var, momentum, eps, counts; the means are (ranks, channels)
    double momentum = in[5].toDouble(), eps = in[6].toDouble();
    Tensor means = in[1].toTensor().to(at::kFloat), counts = in[7].toTensor().to(at::kFloat).reshape({-1, 1});
    Tensor variances = in[2].toTensor().to(at::kFloat).pow(-2) - eps;
    Tensor total = counts.sum();
    Tensor mean = (means * counts).sum(0) / total;
    Tensor var = ((variances + (means - mean).square()) * counts).sum(0) / total;
    update_running(in[3], in[4], mean, var * total / (total - 1), momentum);
    return {mean, at::rsqrt(var + eps)};
  };
  table["batch_norm_update_stats"] = [](const Values& in) -> Values {  // input, running_mean, running_var, momentum
    Tensor x = in[0].toTensor().to(at::kFloat);
    auto [var, mean] = at::var_mean(x, all_but_channels(x), false);
    double count = (double)x.numel() / (double)x.size(1);
    update_running(in[1], in[2], mean, var * (count / (count - 1)), in[3].toDouble());
    return {mean, var};
  };
  table["batch_norm_backward_reduce"] = [](const Values& in) -> Values {
    // grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g
    Tensor g = in[0].toTensor().to(at::kFloat), x = in[1].toTensor().to(at::kFloat);
    Tensor sum = g.sum(all_but_channels(g));
    Tensor sum_xmu = (g * (x - per_channel(in[2].toTensor(), x))).sum(all_but_channels(g));
    return {sum, sum_xmu, sum_xmu * in[3].toTensor().to(at::kFloat), sum};
  };
  table["batch_norm_backward_elemt"] = [](const Values& in) -> Values {
    // grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, counts
    Tensor g = in[0].toTensor().to(at::kFloat), x = in[1].toTensor().to(at::kFloat);
    Tensor total = in[7].toTensor().sum().to(at::kFloat), invstd = in[3].toTensor().to(at::kFloat);
    Tensor scale = invstd;
    if (auto weight = optional_tensor(in[4])) scale = scale * weight->to(at::kFloat);
    Tensor centered = x - per_channel(in[2].toTensor(), x);
    Tensor result = g - per_channel(in[5].toTensor().to(at::kFloat) / total, x) -
                    centered * per_channel(in[6].toTensor().to(at::kFloat) * invstd.square() / total, x);
    return {result * per_channel(scale, x)};
  };

  // Attention. The CPU's flash kernel returns the same pair of result and log-sum-exp; torch's other results (seeds,
  // sizes) are unchanged.
  auto attention = [](const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal, std::optional<Tensor> mask,
                      std::optional<double> scale) {
    return at::_scaled_dot_product_flash_attention_for_cpu(q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), 0.0, is_causal,
                                                           mask ? std::optional<Tensor>(mask->to(at::kFloat)) : mask, scale);
  };
  auto attention_backward = [](const Tensor& g, const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal,
                               std::optional<Tensor> mask, std::optional<double> scale) {
    // Recomputes the result in 32 bits: the saved one may have 16, and its log-sum-exp is padded on CUDA.
    Tensor q32 = q.to(at::kFloat), k32 = k.to(at::kFloat), v32 = v.to(at::kFloat);
    if (mask) mask = mask->to(at::kFloat);
    auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q32, k32, v32, 0.0, is_causal, mask, scale);
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(g.to(at::kFloat), q32, k32, v32, out, lse, 0.0, is_causal,
                                                                    mask, scale);
  };
  auto optional_scale = [](const IValue& value) { return value.isNone() ? std::nullopt : std::optional<double>(value.toDouble()); };
  table["_scaled_dot_product_flash_attention"] = [=](const Values& in) -> Values {
    // query, key, value, dropout_p, is_causal, return_debug_mask, scale
    auto [out, lse] = attention(in[0].toTensor(), in[1].toTensor(), in[2].toTensor(), in[4].toBool(), std::nullopt, optional_scale(in[6]));
    return {out, lse, IValue(), IValue(), IValue(), IValue(), IValue(), IValue(), IValue()};
  };
  table["_scaled_dot_product_flash_attention_backward"] = [=](const Values& in) -> Values {
    // grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, …, scale
    auto [q, k, v] = attention_backward(in[0].toTensor(), in[1].toTensor(), in[2].toTensor(), in[3].toTensor(), in[11].toBool(),
                                        std::nullopt, optional_scale(in[14]));
    return {q, k, v};
  };
  table["_scaled_dot_product_efficient_attention"] = [=](const Values& in) -> Values {
    // query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, scale
    auto [out, lse] = attention(in[0].toTensor(), in[1].toTensor(), in[2].toTensor(), in[6].toBool(), optional_tensor(in[3]),
                                optional_scale(in[7]));
    return {out, IValue(), IValue(), IValue()};
  };
  table["_scaled_dot_product_efficient_attention_backward"] = [=](const Values& in) -> Values {
    // grad_out, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p, grad_input_mask,
    // is_causal, scale
    auto [q, k, v] = attention_backward(in[0].toTensor(), in[1].toTensor(), in[2].toTensor(), in[3].toTensor(), in[11].toBool(),
                                        optional_tensor(in[4]), optional_scale(in[12]));
    return {q, k, v, IValue()};
  };

  // Only CUDA converts within a softmax.
  auto softmax = [](bool is_log) {
    return [is_log](const Values& in) -> Values {  // self, dim, half_to_float
      Tensor x = in[2].toBool() ? in[0].toTensor().to(at::kFloat) : in[0].toTensor();
      return {is_log ? at::_log_softmax(x, in[1].toInt(), false) : at::_softmax(x, in[1].toInt(), false)};
    };
  };
  table["_softmax"] = softmax(false);
  table["_log_softmax"] = softmax(true);
  auto softmax_backward = [](bool is_log) {
    return [is_log](const Values& in) -> Values {  // grad_output, output, dim, input_dtype
      Tensor g = in[0].toTensor(), y = in[1].toTensor();
      auto same = g.scalar_type();
      return {is_log ? at::_log_softmax_backward_data(g, y, in[2].toInt(), same)
                     : at::_softmax_backward_data(g, y, in[2].toInt(), same)};
    };
  };
  table["_softmax_backward_data"] = softmax_backward(false);
  table["_log_softmax_backward_data"] = softmax_backward(true);

  // Cells of GRU and LSTM, which only CUDA has as one operator (ATen/native/cuda/RNN.cu, whose workspaces these are).
  auto sum_of = [](const IValue& one, const IValue& other, const IValue& bias, const IValue& other_bias) {
    Tensor first = one.toTensor().to(at::kFloat), second = other.toTensor().to(at::kFloat);
    if (auto found = optional_tensor(bias)) first = first + *found;
    if (auto found = optional_tensor(other_bias)) second = second + *found;
    return std::make_pair(first, second);
  };
  table["_thnn_fused_gru_cell"] = [=](const Values& in) -> Values {
    // input_gates, hidden_gates, hx, input_bias, hidden_bias; gates are reset, update, new
    auto [of_input, of_hidden] = sum_of(in[0], in[1], in[3], in[4]);
    auto inputs = of_input.chunk(3, 1), hiddens = of_hidden.chunk(3, 1);
    Tensor hx = in[2].toTensor().to(at::kFloat);
    Tensor reset = at::sigmoid(inputs[0] + hiddens[0]), update = at::sigmoid(inputs[1] + hiddens[1]);
    Tensor fresh = at::tanh(inputs[2] + reset * hiddens[2]);
    return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, hiddens[2]}, 1)};
  };
  table["_thnn_fused_gru_cell_backward"] = [](const Values& in) -> Values {  // grad_hy, workspace, has_bias
    Tensor g = in[0].toTensor().to(at::kFloat);
    auto saved = in[1].toTensor().to(at::kFloat).chunk(5, 1);
    Tensor reset = saved[0], update = saved[1], fresh = saved[2];
    Tensor of_update = g * (saved[3] - fresh) * (1 - update) * update;
    Tensor of_fresh = g * (1 - update) * (1 - fresh * fresh);
    Tensor of_reset = of_fresh * saved[4] * (1 - reset) * reset;
    Tensor of_input = at::cat({of_reset, of_update, of_fresh}, 1);
    Tensor of_hidden = at::cat({of_reset, of_update, of_fresh * reset}, 1);
    if (!in[2].toBool()) return {of_input, of_hidden, g * update, IValue(), IValue()};
    return {of_input, of_hidden, g * update, of_input.sum(0), of_hidden.sum(0)};
  };
  table["_thnn_fused_lstm_cell"] = [=](const Values& in) -> Values {
    // input_gates, hidden_gates, cx, input_bias, hidden_bias; gates are in, forget, cell, out
    auto [of_input, of_hidden] = sum_of(in[0], in[1], in[3], in[4]);
    auto gates = (of_input + of_hidden).chunk(4, 1);
    Tensor i = at::sigmoid(gates[0]), f = at::sigmoid(gates[1]), c = at::tanh(gates[2]), o = at::sigmoid(gates[3]);
    Tensor cy = f * in[2].toTensor().to(at::kFloat) + i * c;
    return {o * at::tanh(cy), cy, at::cat({i, f, c, o}, 1)};
  };
  table["_thnn_fused_lstm_cell_backward_impl"] = [](const Values& in) -> Values {
    // grad_hy, grad_cy, cx, cy, workspace, has_bias
    Tensor cx = in[2].toTensor().to(at::kFloat), tanh_cy = at::tanh(in[3].toTensor().to(at::kFloat));
    auto saved = in[4].toTensor().to(at::kFloat).chunk(4, 1);
    Tensor i = saved[0], f = saved[1], c = saved[2], o = saved[3];
    auto of_hy = optional_tensor(in[0]), of_cy = optional_tensor(in[1]);
    Tensor g = of_hy ? of_hy->to(at::kFloat) : at::zeros_like(cx);
    Tensor of_cell = g * o * (1 - tanh_cy * tanh_cy);
    if (of_cy) of_cell = of_cell + *of_cy;
    Tensor of_gates = at::cat({of_cell * c * i * (1 - i), of_cell * cx * f * (1 - f), of_cell * i * (1 - c * c),
                               g * tanh_cy * o * (1 - o)}, 1);
    return {of_gates, of_cell * f, in[5].toBool() ? IValue(of_gates.sum(0)) : IValue()};
  };
  return table;
}

// Dropout has no generator argument, so it cannot be computed by the CPU's kernel without changing the generator that
// the host uses at the same time. An operator with a generator argument computes the result and the mask.
static std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!input.numel() || (train && !*train) || p == 0) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  Tensor mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {input * mask * (p < 1 ? 1 / (1 - p) : 0.0), mask};
}

// Attention with dropout is computed by torch's composition of other operators, so that its mask is drawn as above.
static int64_t attention_with_dropout(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double dropout,
                                      bool is_causal, std::optional<double> scale, bool enable_gqa);

static std::unique_ptr<torch::Library> library;
static c10::SafeKernelFunction* chosen_attention;
static int64_t attention_with_dropout(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double dropout,
                                      bool is_causal, std::optional<double> scale, bool enable_gqa) {
  if (dropout > 0) return 0;  // SDPBackend::math
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_sdp_choice", "");
  Stack stack{q, k, v, mask, dropout, is_causal, scale, enable_gqa};
  chosen_attention->callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::CUDA), &stack);
  return stack[0].toInt();
}

struct Silent : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Wrap every CUDA kernel of torch. Return their number.
API int paper_compute() {
  Silent silent;  // torch warns of replaced kernels
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  paper::start_computing();
  auto& dispatcher = c10::Dispatcher::singleton();
  library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto table = substitutes();
  chosen_attention = new c10::SafeKernelFunction(
      dispatcher.findSchemaOrThrow("aten::_fused_sdp_choice", "").getComputedKernelForDispatchKey(c10::DispatchKey::CUDA));
  library->impl("convolution", convolution);
  library->impl("convolution_backward", convolution_backward);
  library->impl("native_dropout", native_dropout);
  library->impl("_fused_sdp_choice", attention_with_dropout);
  static const std::set<std::string> done = {"convolution", "convolution_backward", "native_dropout", "_fused_sdp_choice"};
  int number = 4;
  for (const c10::OperatorName& full_name : dispatcher.getAllOpNames()) {
    if (full_name.name.compare(0, 6, "aten::")) continue;
    auto op = dispatcher.findSchema(full_name);
    std::string name = full_name.name.substr(6);
    // copy_ selects its kernel internally, for all devices.
    if (!op || !(op->hasKernelForDispatchKey(c10::DispatchKey::CUDA) || name == "copy_")) continue;
    bool is_view = false;
    for (const auto& result : op->schema().returns()) is_view |= result.alias_info() && !result.alias_info()->isWrite();
    if (is_view || done.count(name)) continue;
    std::string overload = full_name.overload_name.empty() ? name : name + "." + full_name.overload_name;
    // Out variants of synchronous operators are computed asynchronously, because their sizes are known.
    bool has_cpu_kernel = op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
    if (is_synchronous(name) && has_cpu_kernel) {
      library->impl(overload.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ComputedNow>()));
    } else {
      Substitute substitute = full_name.overload_name.empty() && table.count(name) ? table[name] : nullptr;
      library->impl(overload.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Computed>(*op, substitute)));
    }
    number++;
  }
  return number;
}
