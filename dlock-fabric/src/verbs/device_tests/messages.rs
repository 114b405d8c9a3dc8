// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages and sleeping, on the device.

use super::*;

#[test]
fn a_sleeper_is_woken_by_a_completion_and_not_without() {
    let Some(context) = device() else { return };
    let primary = Primary::new(&context);
    let (_, served) = primary.client(4);
    let channel = Channel::new(&context).unwrap();
    let cq = Cq::new(&context, 8, Some(&channel)).unwrap();
    assert!(Arc::ptr_eq(cq.channel().unwrap(), &channel));
    let qp_spec = QpSpec {
        send_cq: Arc::clone(&cq),
        recv_cq: Arc::clone(&cq),
        send_slots: 4,
        recv_slots: 1,
        inline_bytes: 8,
        serves: false,
        psn: 5,
    };
    let qp = Qp::new(&Pd::new(&context).unwrap(), qp_spec).unwrap();
    let peer = Qp::new(served._keys[0].pd(), spec(&context, 1, 1, true, 9)).unwrap();
    qp.connect(&peer.endpoint()).unwrap();
    peer.connect(&qp.endpoint()).unwrap();
    let mut client = Client { poster: Poster::new(&qp, 4).unwrap(), cq: Arc::clone(&cq) };
    cq.arm(false).unwrap();
    assert!(!channel.wait(0).unwrap(), "nothing was posted");
    client.poster.post(&[faa(served.slots, 0, 1)], Notify::Yes).unwrap();
    assert!(channel.wait(deadline_in(PATIENCE)).unwrap());
    let completion = next(&cq);
    assert!(client.poster.settle(&completion).success());
    client.run(&[faa(served.slots, 0, 1)]);
    assert!(!channel.wait(0).unwrap(), "it was not armed again");
}

/// Two connected message channels.
fn talkers(context: &Arc<Context>, message: MessageSpec) -> [(Messages, Arc<Cq>); 2] {
    talkers_with(context, [message, message])
}

fn talkers_with(context: &Arc<Context>, specs: [MessageSpec; 2]) -> [(Messages, Arc<Cq>); 2] {
    let ends = specs.map(|message| {
        let pd = Pd::new(context).unwrap();
        let spec = spec(context, message.send_slots(), message.slots.into(), false, 1);
        let cq = Arc::clone(&spec.send_cq);
        let qp = Qp::new(&pd, spec).unwrap();
        let messages = Messages::new(&qp, message).unwrap();
        (qp, messages, cq)
    });
    ends[0].0.connect(&ends[1].0.endpoint()).unwrap();
    ends[1].0.connect(&ends[0].0.endpoint()).unwrap();
    ends.map(|(_, messages, cq)| (messages, cq))
}

fn text(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (number * 31 + i) as u8).collect()
}

/// Handles all completions that have come; returns the messages.
fn drain(end: &mut (Messages, Arc<Cq>)) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    let mut some = [Completion::default(); 4];
    loop {
        let len = end.1.poll(&mut some).unwrap();
        for completion in &some[..len] {
            let mut bytes = Vec::new();
            if end.0.take(completion, &mut bytes).unwrap() == Event::Message {
                messages.push(bytes);
            }
        }
        if len == 0 {
            return messages;
        }
    }
}

#[test]
fn messages_arrive_whole_and_in_order_however_unbalanced() {
    let Some(context) = device() else { return };
    let spec = MessageSpec { slots: 8, peer_slots: 8, bytes: 1_000 };
    let mut ends = talkers(&context, spec);
    let lengths = [0, 1, 64, 220, 221, 1_000];
    let mut sent = [0, 0];
    let mut got = [0, 0];
    let until = Instant::now() + PATIENCE;
    // the first end sends all the time, and the second end now and then
    while got != [40, 400] {
        assert!(Instant::now() < until, "stuck at {sent:?}, {got:?}");
        for (end, total) in [(0, 400), (1, 40)] {
            let turn = end == 0 || got[1] >= sent[1] * 10;
            if turn && sent[end] < total {
                let message = text(sent[end], lengths[sent[end] % lengths.len()]);
                match ends[end].0.send(&message) {
                    Ok(()) => sent[end] += 1,
                    Err(MessageError::Busy) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            for message in drain(&mut ends[end]) {
                assert_eq!(message, text(got[end], lengths[got[end] % lengths.len()]));
                got[end] += 1;
            }
        }
    }
    let error = ends[0].0.send(&[0; 1_001]).unwrap_err();
    assert_eq!(error, MessageError::TooLong { len: 1_001, max: 1_000 });
}

#[test]
fn a_receiver_that_takes_nothing_stops_the_sender_and_not_the_queue_pair() {
    let Some(context) = device() else { return };
    let spec = MessageSpec { slots: 8, peer_slots: 8, bytes: 64 };
    let mut ends = talkers(&context, spec);
    let mut sent = 0;
    while ends[0].0.send(&text(sent, 64)).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 7, "all buffers but the one for a return of credits");
    let (got, until) = (&mut Vec::new(), Instant::now() + PATIENCE);
    while got.len() < 7 || !ends[0].0.may_send() {
        assert!(Instant::now() < until, "credits did not come back");
        got.extend(drain(&mut ends[1]));
        assert!(drain(&mut ends[0]).is_empty());
    }
    assert!((0..7).all(|i| got[i] == text(i, 64)));
    ends[0].0.send(b"more").unwrap();
}

#[test]
fn a_peer_that_breaks_the_message_rules_is_cut_off() {
    let Some(context) = device() else { return };
    let spec = MessageSpec { slots: 8, peer_slots: 8, bytes: 64 };
    // returns credits that the peer has never received
    let mut ends = talkers(&context, spec);
    ends[1].0.forge(3);
    ends[1].0.send(b"x").unwrap();
    let completion = next(&ends[0].1);
    let refused = ends[0].0.take(&completion, &mut Vec::new());
    assert!(matches!(refused, Err(MessageError::Peer(_))), "{refused:?}");
    let after = ends[0].0.send(b"x");
    assert!(matches!(after, Err(MessageError::Broken { .. })), "{after:?}");
    // bare returns without credits, and a bare return with a payload
    for (owed, bytes) in [(0, &b""[..]), (0, b"x"), (3, b"x")] {
        let mut ends = talkers(&context, spec);
        for _ in 0..owed {
            ends[0].0.send(b"x").unwrap();
            let completion = next(&ends[1].1);
            ends[1].0.take(&completion, &mut Vec::new()).unwrap();
        }
        ends[1].0.post_bare(bytes);
        let refused = loop {
            let completion = next(&ends[0].1);
            match ends[0].0.take(&completion, &mut Vec::new()) {
                Ok(Event::Sent) => {}
                other => break other,
            }
        };
        assert!(matches!(refused, Err(MessageError::Peer(_))), "{refused:?}");
    }
    // a message without the immediate value, so that it returns no credits
    let mut ends = talkers(&context, spec);
    ends[1].0.post_without_credits();
    let completion = next(&ends[0].1);
    let refused = ends[0].0.take(&completion, &mut Vec::new());
    assert!(matches!(refused, Err(MessageError::Peer(_))), "{refused:?}");
    // a message that is longer than the two ends have agreed
    let mut ends = talkers_with(&context, [spec, MessageSpec { bytes: 1_000, ..spec }]);
    ends[1].0.send(&[1; 65]).unwrap();
    let completion = next(&ends[0].1);
    let mut bytes = Vec::new();
    let refused = ends[0].0.take(&completion, &mut bytes);
    // The standard says LOC_LEN_ERR, SoftRoCE LOC_QP_OP_ERR.
    assert!(matches!(refused, Err(MessageError::Broken { .. })), "{refused:?}");
    assert!(bytes.is_empty());
}
