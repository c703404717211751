-- title: Everybody active who wants our mail
-- owner: team:growth
-- description: Active people who opted in to marketing, the most recently seen first, so that a campaign which is
--   stopped half-way has reached those who are likeliest to read it.

SELECT user_id, email, timezone, locale, first_name, city, country, tier
FROM users
WHERE is_active
  AND marketing_opt_in
  AND created_at <= :as_of
ORDER BY last_login_at DESC NULLS LAST, user_id
