use super::*;
use crate::element::ElementKind;
use crate::shared::memory::create;

#[test]
fn the_numbers_of_messages_and_of_pieces_may_wrap_around() {
    let (file, _) = create(2).unwrap();
    let [mut one, mut two] = [0, 1].map(|own| Memory::map(&file, 2, own).unwrap());
    for memory in [&mut one, &mut two] {
        memory.passed = vec![Passed { sent: u32::MAX - 1, received: u32::MAX - 1 }; 2];
        let mailbox = memory.mailbox(memory.own);
        mailbox.written.store(u32::MAX - 2, Ordering::SeqCst);
        mailbox.answers.read.store(u32::MAX - 2, Ordering::SeqCst);
    }
    let sent: Vec<u8> = (0..3 * PIECE + 5).map(|at| (at / 1000) as u8).collect();
    let to = Message::to(1, 0, ElementKind::U8, sent.len());
    for _ in 0..4 {
        assert!(!two.has_message(0) && !two.has_piece(0));
        one.post(0, Some((to, &sent)), None).unwrap();
        let mut into = vec![0; sent.len()];
        assert!(two.has_message(0) && two.waiting_after(0) == Some((0, Some(to.said))));
        for piece in 0..one.pieces(sent.len()) {
            if piece > 0 {
                assert!(!two.has_piece(0) && one.has_room());
                one.write_next(1, &sent, piece);
            }
            assert!(two.has_piece(0) && !one.is_read());
            two.read_next(0, &mut into, piece);
        }
        assert!(into == sent && one.is_read());
        one.count_sent(1);
        two.count_received(0);
        assert_eq!(two.waiting_after(0), None);
    }
}

#[test]
fn a_rank_writes_no_piece_over_one_that_is_unread() {
    for ranks in [2, 64, 1000] {
        let (file, _) = create(ranks).unwrap();
        let mut memory = Memory::map(&file, ranks, 0).unwrap();
        let pieces = memory.room() + 1;
        let sent = vec![0; pieces * memory.piece()];
        assert_eq!(memory.pieces(sent.len()), pieces);
        memory
            .post(0, Some((Message::to(1, 0, ElementKind::U8, sent.len()), &sent)), None)
            .unwrap();
        let mut written = 1;
        while memory.has_room() {
            memory.write_next(1, &sent, written);
            written += 1;
        }
        assert_eq!(written, memory.room());
        let (_, end) = memory.piece_at(memory.room() - 1, sent.len());
        assert!(end + memory.piece() <= memory.slot());
    }
}
