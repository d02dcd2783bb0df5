//! How calls print, and what tells them apart.

use super::*;

#[test]
fn a_call_comes_out_of_a_message_as_it_went_in() {
    let kinds = [None, Some(ElementKind::F32), Some(ElementKind::U64)];
    for &(operation, _) in NAMES {
        for (kind, is_refused) in kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
            let meant = u8::from(is_refused) * 5;
            let is_half = false;
            let call = Call { operation, kind, count: 7, root: 3, is_refused, is_half, meant };
            assert_eq!(Call::from_codes(call.codes(), 7, 3), Some(call));
        }
    }
    let half = Message::to(3, 2, ElementKind::F32, 7).as_half(false).said;
    assert_eq!(Call::from_codes(half.codes(), 7, 3), Some(half));
    for codes in [
        [NAMES.len() as u8, 0, 0],
        [0, ElementKind::ALL.len() as u8 + 1, 0],
        [0, 0, 2],
        [24, 1, 3],
        [5, 1, 63 << 2],
    ] {
        assert_eq!(Call::from_codes(codes, 7, 0), None, "{codes:?}");
    }
}

#[test]
fn the_guide_has_the_number_of_every_operation_and_type() {
    let page = include_str!("../../guide/wire_format.md");
    let has = |title: &str, rows: Vec<(u8, &str)>| {
        let rows = rows.iter().map(|(number, name)| format!("| {number} | `{name}` |\n"));
        let table =
            format!("\n| number | {title} |\n| --- | --- |\n{}\n", rows.collect::<String>());
        assert!(page.contains(&table), "{table}");
    };
    has("operation", NAMES.iter().map(|(operation, name)| (*operation as u8, *name)).collect());
    let kinds = (1..).map_while(|code| Some((code, ElementKind::from_code(code)??.name())));
    has("type", kinds.collect());
    has("type that travels as another", (1..).zip(TYPES.iter().map(|(name, _)| *name)).collect());
}

#[test]
fn two_ranks_whose_messages_do_not_match_learn_what_they_must_do() {
    let (kind, other) = (ElementKind::F64, ElementKind::F32);
    let sent = |kind, count| Message::to(1, 0, kind, count);
    let received = |kind, count| Message::from(0, 1, kind, count);
    let ends = |one: Message, another: Message, end| {
        let rule = one.said.rule_broken_with(another.said);
        assert!(rule.starts_with(end), "{one:?}, {another:?}: {rule}");
    };
    let (direction, length) = ("one rank must receive", "a message needs the same count");
    ends(sent(kind, 3), Message::to(0, 1, kind, 3), direction);
    ends(sent(kind, 3), Message::to(0, 1, kind, 4).as_half(false), direction);
    ends(sent(kind, 3).as_half(false), Message::to(0, 1, kind, 3).as_half(false), direction);
    ends(sent(kind, 3), received(kind, 4), length);
    ends(sent(kind, 3), received(other, 3).as_half(false), length);
    ends(sent(kind, 3).as_half(false), Message::to(0, 1, kind, 4).as_half(false), length);
    let (half, groups) = (sent(kind, 3).as_half(true), "they are calls of two groups");
    ends(sent(kind, 3), received(kind, 3), groups);
    ends(half, received(kind, 3).as_half(true), groups);
    ends(half, received(kind, 3), "two ranks that exchange messages must both call send_receive");
    ends(sent(kind, 3), received(kind, 3).meaning(1), "a message needs the same count");
    let rule = sent(kind, 3).said.rule_broken_with(Call::BARRIER);
    assert_eq!(rule, "all ranks must make the same calls in the same order");
    // Those of all ranks.
    let broken = |one: Call, other: Call, end: &str| {
        let rule = one.rule_broken_with(other);
        assert!(rule.contains(end), "{one:?}, {other:?}: {rule}");
    };
    let gather = |kind, count| Call::moving(Gather, kind, count);
    broken(gather(kind, 3), gather(kind, 2), "needs the same type and count on all ranks");
    let rule = gather(kind, 3).rule_broken_with(gather(other, 3));
    assert_eq!(rule, "this call needs the same type and count on all ranks");
    let any = Call::of_any(AllGather, kind);
    broken(any, Call::moving(AllGather, kind, 3), "the same calls in the same order");
    broken(gather(kind, 3), gather(kind, 3).with(1), "the same calls in the same order");
    broken(gather(kind, 3), Call::refused(Gather, "gather"), "says what is wrong with them");
}

#[test]
fn a_call_is_described_as_a_user_wrote_it() {
    let of = |by, results| Reduce::new(by, results, ElementKind::F32, 10).call;
    let sum = of(Reduction::Sum, Results::ToAll);
    assert_eq!(sum.to_string(), "all_reduce_sum of 10 f32");
    let any = |operation| Call::of_any(operation, ElementKind::U8).with(3).to_string();
    assert_eq!(any(Broadcast), "broadcast_vec of any count of u8 from rank 3");
    assert_eq!(any(AllGather), "all_gather of any count of u8");
    assert_eq!(any(AllToAll), "all_to_all of any count of u8");
    assert_eq!(Call::BARRIER.to_string(), "barrier");
    for (operation, name) in [
        (Broadcast, "broadcast"),
        (Broadcast, "broadcast_vec"),
        (AllToAll, "all_to_all"),
        (AllToAll, "all_to_all_into"),
    ] {
        let refused = Call::refused(operation, name).to_string();
        assert_eq!(refused, format!("{name} with invalid arguments"));
    }
    let complex = type_number("complex64").unwrap();
    assert_eq!(sum.meaning(complex).to_string(), "all_reduce_sum of 5 complex64");
    let short = Reduce::new(Reduction::Sum, Results::ToAll, ElementKind::I32, 10).call;
    let short = short.meaning(type_number("int16").unwrap());
    assert_eq!(short.to_string(), "all_reduce_sum of 10 int16");
    let bytes = Call::moving(Broadcast, ElementKind::U8, 10);
    let bytes = bytes.meaning(type_number("uint16").unwrap());
    assert_eq!(bytes.to_string(), "broadcast of 5 uint16 from rank 0");
    let built = |name| Call::built(built_number(name).unwrap(), ElementKind::F32, 10).unwrap();
    let sparse = built("all_reduce (sparse)").with(2);
    assert_eq!(sparse.to_string(), "all_reduce (sparse) of 10 f32 in 2 dimensions");
    assert_eq!(built("reduce (bor)").to_string(), "reduce (bor) of 10 f32 to rank 0");
    assert_eq!(built_number("barrier"), None);
    assert_eq!(Call::built(255, ElementKind::F32, 1), None);
    assert!(sum.differs_in_length_alone(Call { count: 11, ..sum }));
    let doubles = Call { kind: Some(ElementKind::F64), count: 11, ..sum };
    assert!(!sum.differs_in_length_alone(doubles));
    let mean = of(Reduction::Mean, Results::To(2));
    assert_eq!(mean.to_string(), "reduce (mean) of 10 f32 to rank 2");
    assert!(mean.differs_in_length_alone(Call { count: 11, ..mean }));
    let moving = |operation| Call::moving(operation, ElementKind::Bf16, 8).with(1);
    assert_eq!(moving(Broadcast).to_string(), "broadcast of 8 bf16 from rank 1");
    assert_eq!(moving(AllGather).to_string(), "all_gather_into of 8 bf16 for each rank");
    assert_eq!(moving(AllToAll).to_string(), "all_to_all_into of 8 bf16 for each rank");
    assert_eq!(moving(Gather).to_string(), "gather of 8 bf16 for each rank to rank 1");
    assert_eq!(moving(Scatter).to_string(), "scatter of 8 bf16 for each rank from rank 1");
    assert_eq!(moving(Send).to_string(), "send of 8 bf16 to rank 1");
    assert_eq!(moving(Receive).to_string(), "receive of 8 bf16 from rank 1");
    assert_eq!(moving(SendTagged).to_string(), "send of 8 bf16 with tag 1");
    assert_eq!(moving(ReceiveTagged).to_string(), "receive of 8 bf16 with tag 1");
    let half = |message: Message| message.as_half(false).said.to_string();
    let kind = ElementKind::F64;
    assert_eq!(half(Message::to(2, 1, kind, 8)), "send_receive of 8 f64 to rank 2");
    assert_eq!(half(Message::from(2, 1, kind, 8)), "send_receive of 8 f64 from rank 2");
    assert!(!moving(Gather).differs_in_length_alone(Call { count: 9, ..moving(Gather) }));
    let broadcast = Call::of_any(Broadcast, kind);
    assert!(!broadcast.differs_in_length_alone(broadcast.with(1)));
}
