// Delayed scaling: for each tensor whose scale follows from earlier steps, what it remembers. As
// TransformerEngine's DelayedScaling. All of it lives on the tensor's device, so nobody waits.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <halftone/core/named_tensors.h>
#include <halftone/core/quantizer.h>

namespace halftone::policy {

class TensorScales {
 public:
  /// The scale to use now; x's largest magnitude is noted for the end of the step, if `notes`.
  /// `name`: the tensor's.
  Tensor scale_for(const std::string& name, const Quantizer& quantizer, const Tensor& x,
                   bool notes);
  /// What has been noted since the last end_step(), which waits for a GPU; and the same told by
  /// somebody else.
  struct Noted {
    std::string name;
    Quantizer quantizer;
    float amax;
  };
  std::vector<Noted> noted() const;
  void note(const Noted& seen);
  /// What was noted since the last one enters the histories, and the scales follow; magnitudes that
  /// are not finite change nothing. A history counts the steps in which its tensor was seen.
  void end_step();

  /// "amax.<name>", "history.<name>", "position.<name>", "scale.<name>"
  void add_to(NamedTensors& state) const;
  /// Takes those entries of a state; entries for tensors that were not met yet wait for them.
  void load(const NamedTensors& state);

 private:
  struct Memory {
    Quantizer quantizer{};
    Tensor amax{}, history{}, position{}, scale{};
    bool noted = false;  // something since the last step
  };
  Memory& memory_for(const std::string& name, const Quantizer& quantizer, Device device);
  std::map<std::string, Memory> memories_;
  NamedTensors waiting_;
};

}  // namespace halftone::policy
