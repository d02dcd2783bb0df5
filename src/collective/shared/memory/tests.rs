use super::*;

#[test]
fn a_file_that_is_not_the_memory_is_refused() {
    let (file, mut offer) = create(2).unwrap();
    assert!(open(&offer, 2).is_ok());
    assert!(open(&offer, 3).is_err(), "of another number of ranks");
    // A file that becomes shorter kills those who use the rest.
    assert!(rustix::fs::ftruncate(&file, 0).is_err());
    offer.nonce[3] ^= 1;
    let error = open(&offer, 2).unwrap_err().to_string();
    assert!(error.ends_with("is another process's"), "{error}");
    drop(file);
    assert!(open(&offer, 2).is_err(), "closed");

    // Opening this pipe would wait for a writer.
    let (reader, _writer) = std::io::pipe().unwrap();
    offer.descriptor = reader.as_raw_fd();
    let error = open(&offer, 2).unwrap_err().to_string();
    assert!(error.ends_with("is another file"), "{error}");
}

#[test]
fn slots_neither_overlap_nor_leave_the_memory() {
    for ranks in [1, 2, 3, 64, 1000] {
        let (file, _) = create(ranks).unwrap();
        let memory = Memory::map(&file, ranks, 0).unwrap();
        let mut before = memory.base.as_ptr() as usize + LINE + ranks * size_of::<Place>();
        for rank in 0..ranks {
            for round in 0..2 {
                let (at, length) = memory.slot_at(rank, round);
                let at = at.as_ptr() as usize;
                assert!(at >= before && at.is_multiple_of(LINE));
                before = at + length;
            }
        }
        assert!(before <= memory.base.as_ptr() as usize + memory.length);
        assert!(memory.length <= MOST + (1 << 20), "{ranks} ranks take {} bytes", memory.length);
    }
}

#[test]
fn the_counter_of_rounds_may_wrap_around() {
    let (file, _) = create(2).unwrap();
    let [mut one, mut two] = [0, 1].map(|own| Memory::map(&file, 2, own).unwrap());
    for memory in [&mut one, &mut two] {
        memory.round = u32::MAX - 1;
        memory.place(memory.own).published.store(u32::MAX - 1, Ordering::SeqCst);
    }
    for round in 0..4_u8 {
        for memory in [&mut one, &mut two] {
            memory.next().unwrap().0[0] = round;
            memory.publish(Call::BARRIER);
        }
        for (memory, other) in [(&mut one, 1), (&mut two, 0)] {
            assert_eq!(memory.slots().unwrap().of(other)[0], round);
        }
    }
    two.publish(Call::BARRIER);
    one.publish(Call::BARRIER);
    one.publish(Call::BARRIER);
    assert!(
        two.has_published(0)
            && !one.has_published(1)
            && one.slots().is_err()
            && one.next().is_err()
    );
}
