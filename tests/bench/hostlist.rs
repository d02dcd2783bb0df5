//! The cost of a hostlist: its first host, and all of its hosts.

#![expect(clippy::unwrap_used, reason = "a bench stops at the first error")]

use divan::{Bencher, black_box};
use mpienv_core::seam::Hostlist;

fn main() {
    divan::main();
}

/// Limit: 1 us.
#[divan::bench]
fn first_of_a_million() -> String {
    let list = Hostlist::parse(black_box("n[1-1000000]")).unwrap();
    list.first().into_owned()
}

/// Limit: 20 ms.
#[divan::bench]
fn expand_a_hundred_thousand() -> usize {
    let list = Hostlist::parse(black_box("n[1-100000]")).unwrap();
    list.iter().map(|host| host.len()).sum()
}

#[divan::bench]
fn expand_a_hundred_thousand_into_a_vec() -> Vec<String> {
    let list = Hostlist::parse(black_box("n[1-100000]")).unwrap();
    list.iter().map(|host| host.into_owned()).collect()
}

#[divan::bench]
fn expand_a_hundred_thousand_single_numbers(bencher: Bencher) {
    let numbers: Vec<String> = (1..=100_000).map(|n| (2 * n).to_string()).collect();
    let text = format!("n[{}]", numbers.join(","));
    bencher.bench(|| {
        let list = Hostlist::parse(black_box(&text)).unwrap();
        list.iter().map(|host| host.len()).sum::<usize>()
    });
}

#[divan::bench]
fn expand_a_hundred_thousand_of_three_brackets() -> usize {
    let list = Hostlist::parse(black_box("r[1-10]c[01-10]n[0001-1000]-ib")).unwrap();
    list.iter().map(|host| host.len()).sum()
}
