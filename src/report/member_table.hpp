// The members of a generation as lines for people, the best ones first, those that failed last.
//
//   member  score   from  optimizer.lr  optimizer.name
//        4  0.8712     0  0.013         adam
//        0  0.8421     -  0.01          sgd
//        1  failed     -  0.9           sgd
#pragma once

#include <string>
#include <vector>

#include <tutti/base/events.hpp>

namespace tutti::detail {

// A heading and a line for each of the first 20, and how many more there are. No lines where there are no members.
std::vector<std::string> member_table(std::vector<event::MemberEvaluated> members, bool higher_is_better);

}  // namespace tutti::detail
