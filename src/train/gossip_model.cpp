#include "gossip_model.hpp"

#include <utility>
#include <variant>

namespace tutti::detail {
namespace {

// A replica of another process has its parameters there: its tasks come without, and nothing is to be done for it here.
class GossipModel final : public AsynchronousModel {
 public:
  explicit GossipModel(std::shared_ptr<Gossip> gossip) : gossip_(std::move(gossip)) {}

  ModelSnapshot pull(int worker) override {
    if (!gossip_->is_here(worker)) return {std::make_shared<const ParameterSet>(), 0};
    return {gossip_->parameters(worker), 0};
  }
  double push(int worker, const GradientWork&, const GradientReply& reply, double rate_factor) override {
    return learn_and_meet(*gossip_, worker, *reply.gradients, rate_factor);
  }
  StalenessCounts staleness() const override { return {}; }

  void leave(int) override {}
  void lose(int worker) override { gossip_->lose(worker); }
  ParameterSet parameters() const override { return gossip_->mean(); }
  void save(ParameterSet& arrays) const override { gossip_->save(arrays); }
  void restore(const ParameterSet& arrays) override { gossip_->restore(arrays, Restored::what_fits); }

 private:
  std::shared_ptr<Gossip> gossip_;
};

}  // namespace

std::shared_ptr<Gossip> make_gossip(const Run& run, const TrainedParameters& parameters, const Communicator* world) {
  const auto& parallel = std::get<strategy::DataParallel>(run.graph.effective_strategy());
  const auto* decentralized = std::get_if<strategy::Decentralized>(&parallel.aggregation);
  if (decentralized == nullptr) return nullptr;
  return std::make_shared<Gossip>(
      values_of(parameters),
      GossipOptions{.replicas = static_cast<int>(parallel.num_replicas),
                    .topology = decentralized->topology,
                    .seed = run.seed,
                    .process = world == nullptr ? 0 : world->rank().value,
                    .processes = world == nullptr ? 1 : world->size(),
                    .make_rule = [rule = run.optimizer,
                                  factors = parameters.rate_factors] { return make_update_rule(rule, factors); },
                    .deadline = run.train.deadline});
}

std::unique_ptr<AsynchronousModel> make_gossip_model(std::shared_ptr<Gossip> gossip) {
  return std::make_unique<GossipModel>(std::move(gossip));
}

// What one replica learns of its share is learnt by one of so many.
double learn_and_meet(Gossip& gossip, int replica, const ParameterSet& gradients, double rate_factor) {
  gossip.learn(replica, gradients, rate_factor * gossip.living());
  return gossip.meet(replica);
}

}  // namespace tutti::detail
