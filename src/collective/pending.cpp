#include <tutti/collective/pending.hpp>

#include <tutti/base/error.hpp>

#include "engine.hpp"

namespace tutti {

Pending::Pending(std::shared_ptr<detail::Operation> operation) : operation_(std::move(operation)) {}
Pending::Pending(Pending&&) noexcept = default;

Pending& Pending::operator=(Pending&& other) noexcept {
  if (this != &other) {
    if (operation_) operation_->abandon();
    operation_ = std::move(other.operation_);
  }
  return *this;
}

Pending::~Pending() {
  if (operation_) operation_->abandon();
}

bool Pending::ready() const { return !operation_ || operation_->ready(); }

void Pending::wait() {
  if (!operation_) throw UsageError("this call has been waited for already");
  std::exchange(operation_, nullptr)->wait();
}

}  // namespace tutti
