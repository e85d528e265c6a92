use super::*;

#[test]
fn what_is_too_large_is_refused_and_what_is_usual_is_not() {
    for usual in
        [r"^220[ -].*ESMTP", r"\w{20}", r"(?i)<title>[^<]{1,80}</title>", r"[\w.+-]+@[\w-]+\.[\w.-]+"]
    {
        assert_eq!(check_pattern(usual), Ok(()), "{usual}");
        Pattern::compile(usual).unwrap();
    }
    for (wrong, why) in
        [(r"\w{500}", "more than 1024 KiB"), ("a{9999}{9999}", "more than 1024"), ("(", "unclosed")]
    {
        assert!(check_pattern(wrong).unwrap_err().contains(why), "{wrong}");
        let said = Pattern::compile(wrong).unwrap_err();
        assert!(said.contains(why) && said.contains("regular expression"), "{said}");
    }
}

#[test]
fn only_small_things_are_matched_at_once() {
    let (small, large) = (Pattern::compile("ok").unwrap(), Pattern::compile("a[ab]{2000}c").unwrap());
    assert!(small.is_quick(64 << 10) && !small.is_quick(1 << 20));
    assert!(large.is_quick(100) && !large.is_quick(1000));
}

#[tokio::test]
async fn a_long_match_leaves_the_thread_to_others() {
    let pattern = Pattern::compile("a[ab]{2000}c").unwrap();
    let mut octets = vec![b'a'; 60_000];
    // The one that matches is the last, so that everything is looked at.
    octets.push(b'c');
    let (matching, other) = (pattern.matches(vec![octets]), pattern.matches(vec![vec![b'a'; 60_000]]));
    let mut matching = std::pin::pin!(matching);
    let waker = std::task::Waker::noop();
    // It gives the thread back before it is done, and the work is not begun twice.
    assert!(matching.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
    let Err(Failure::Bad(text)) = other.await else { panic!("two threads") };
    assert!(text.contains("has not ended yet"), "{text}");
    let (found, all) = matching.await.unwrap();
    assert!(found && all[0].len() == 60_001);
    // The place is free again.
    assert!(!pattern.matches(vec![vec![b'a'; 60_000]]).await.unwrap().0);
}
