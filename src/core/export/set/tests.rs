use std::collections::BTreeSet;

use super::*;

#[test]
fn each_set_has_the_description_that_is_in_its_place() {
    let names: BTreeSet<_> = Target::ALL.iter().map(|set| set.name()).collect();
    assert_eq!(names.len(), Target::ALL.len());
    for &set in Target::ALL {
        assert_eq!(set.name(), format!("{set:?}").to_lowercase());
        assert_eq!(set.variables().count() == 0, set == Target::Torch);
        let own: BTreeSet<_> = set.variables().map(|variable| variable.name).collect();
        assert_eq!(own.len(), set.variables().count(), "{set:?} has a variable twice");
        for TargetVariable { name, meaning, page } in set.variables() {
            let is_link =
                page.starts_with('[') && page.contains("](https://") && !page.contains(' ')
                    || set == Target::TensorFlow;
            assert!(is_link && !meaning.is_empty(), "{name}: {page}");
        }
    }
}
